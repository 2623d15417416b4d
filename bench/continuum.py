"""What it costs that there are others: a call that runs at a neighbour, and keeping in touch with a hundred.

Servers and nodes are processes of their own on loopback, as people start them. Calls here and there are made
by wrk, one after the other over one connection, in turns, so that whatever else the machine does hits both
alike. Of the hundred members one is the server, and 98 are in this process, half of them in the node's own
area: they have joined, have said hello and have links with certificates of their own, and those of its area
ask the node how it is as often as nodes do, but they run nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import structlog
import uvloop
from tests.support.links import OpenAccess

from bench.figures import Figure
from bench.functions import PYTHON, Client, write_script, wrk
from bench.members import IdleMember
from bench.serving import percentile, skerry
from skerry.functions.continuum.member_api import MemberLoad
from skerry.functions.coordinates import START
from skerry.kit import tasks
from skerry.kit.clock import SystemClock
from skerry.model.ids import FunctionName, NodeId
from skerry.model.members import ContinuumMember
from skerry.model.node_messages import NodeHello
from skerry.model.settings import FunctionSettings
from skerry.node.agent.node_identity import NodeIdentity
from skerry.transport.links.members.link_pool import LinkPool
from skerry.transport.links.members.server import MemberLinkServer
from skerry.transport.links.nodes.client import GrpcControlDialer

ROUNDS = 10
LOAD_S = 1
WORKERS = 2
MEMBERS = 100
REST_S = 30.0
SETTLE_S = 10.0
EDGE, CLOUD = "edge", "cloud"
# How the others say they are: with warm workers of some functions.
STANDING = MemberLoad(START, 4096, 4.0, 0, {FunctionName(f"function-{number}"): 2 for number in range(20)})
SETTINGS = FunctionSettings()


def measure() -> Iterator[Figure]:
    yield from calls()
    yield from company()


@contextlib.contextmanager
def node(folder: Path, server: Client, area: str, subnet: str, *more: str) -> Iterator[dict[str, Any]]:
    """What the ready file of a node says that takes calls of functions in `area`, and is called like it."""
    flags = ["--join", server.url, "--token", make_token(server), "--name", area, *more]
    for setting in (
        *(f"functions.area={area}", f"functions.remote_area={CLOUD}", "functions.neighbours=127.0.0.1:0"),
        *("functions.memory_mb=512", f"network.subnet={subnet}"),
    ):
        flags += ["--set", setting]
    with skerry(*flags, role="node", data=folder / area) as ready:
        yield ready


def make_token(server: Client) -> str:
    token: str = server.post("/token/", {"role": "node"})["token"]
    return token


def neighbours_of(url: str) -> list[dict[str, Any]]:
    with Client(url) as client:
        told: list[dict[str, Any]] = client.get("/neighbours")
    return told


def names_up(url: str) -> set[str]:
    """Members that are reached from there."""
    return {other["Node"] for other in neighbours_of(url) if other["Up"]}


def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    ends = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > ends:
            raise RuntimeError(f"what was waited for did not come within {within_s:g} s")
        time.sleep(0.1)


# A call that runs elsewhere


def calls() -> Iterator[Figure]:
    times: dict[str, list[float]] = {"near": [], "far": []}
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="skerry-continuum-")))
        ready = running.enter_context(skerry(role="server", data=folder / "server"))
        server = running.enter_context(Client(ready["http"]))
        ready = running.enter_context(node(folder, server, EDGE, "10.118.1.0/24"))
        edge = running.enter_context(Client(ready["http"]))
        ready = running.enter_context(node(folder, server, CLOUD, "10.118.2.0/24"))
        cloud = running.enter_context(Client(ready["http"]))
        until(lambda: {EDGE, CLOUD} <= names_up(server.url))
        until(lambda: CLOUD in names_up(edge.url))
        server.create("near", "python310", "noop.handler", PYTHON, Policy="localonly")
        server.create("far", "python310", "noop.handler", PYTHON, Policy="cloudonly")
        for client, name in ((edge, "near"), (cloud, "far")):
            until(lambda: {"near", "far"} <= set(client.get("/function")))  # noqa: B023 - not used later
            client.post("/prewarm", {"Function": name, "Instances": WORKERS})
        script = write_script(folder)
        for turn in range(ROUNDS + 1):
            for name, area in (("near", EDGE), ("far", CLOUD)):
                took = wrk(f"{edge.url}/invoke/{name}", script, 1, LOAD_S)[1]
                report = edge.post(f"/invoke/{name}", {"Params": {}})
                if (report["ExecutionArea"], report["IsWarmStart"]) != (area, True):
                    raise RuntimeError(f"not a warm call in {area}: {report}")
                if turn:  # the first are for all to get warm
                    times[name].append(took)
    near, far = percentile(times["near"], 0.5), percentile(times["far"], 0.5)
    yield Figure("warm call here, p50", near * 1e3, "ms", note="over HTTP, one after the other")
    yield Figure("warm call that runs at a neighbour, p50", far * 1e3, "ms")
    yield Figure(
        "warm call that runs at a neighbour, p50",
        far / near,
        "x the same here",
        at_most=2.5,
        peer=near * 1e3,
        peer_unit="ms",
        peer_name="the same here",
    )


# A hundred members


def company() -> Iterator[Figure]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="skerry-company-")))
        # Warnings are for people: in the end the others leave without a word.
        quiet = ("--log-level", "error")
        ready = running.enter_context(skerry(*quiet, role="server", data=folder / "server"))
        server = running.enter_context(Client(ready["http"]))
        ready = running.enter_context(node(folder, server, EDGE, "10.118.1.0/24", *quiet))
        until(lambda: EDGE in names_up(server.url))
        time.sleep(SETTLE_S)
        alone = share_of_core(ready["pid"])
        among = uvloop.run(share_in_company(folder, ready, server.url))
    yield Figure("node that does nothing, alone", alone * 100, "% of a core", note=f"for {REST_S:g} s")
    yield Figure(f"the same, one of {MEMBERS} members", among * 100, "% of a core")
    yield Figure(
        f"what {MEMBERS} members cost a node",
        (among - alone) * 100,
        "% of a core",
        at_most=2.0,
        peer=alone * 100,
        peer_unit="% of a core",
        peer_name="node alone",
    )


def share_of_core(pid: int) -> float:
    """Of one core, how much a process takes from now on, for a while."""
    began, used = time.monotonic(), cpu_s(pid)
    time.sleep(REST_S)
    return (cpu_s(pid) - used) / (time.monotonic() - began)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def share_in_company(folder: Path, edge: dict[str, Any], url: str) -> float:
    [address] = [other["Address"] for other in neighbours_of(url) if other["Node"] == EDGE]
    member = ContinuumMember(NodeId(edge["node"]), EDGE, EDGE, address=address)
    async with contextlib.AsyncExitStack() as running:
        others = MEMBERS - 2  # beside the node and its server
        for number in range(others):
            area = EDGE if number % 2 else CLOUD
            await running.enter_async_context(other(folder / f"{number}", url, area, f"n{number}", member))
        await asyncio.to_thread(until, lambda: len(names_up(edge["http"])) == others)
        await asyncio.sleep(SETTLE_S)
        share = await asyncio.to_thread(share_of_core, edge["pid"])
        if len(names_up(edge["http"])) != others:
            raise RuntimeError("the node has lost members")
    return share


@contextlib.asynccontextmanager
async def other(
    folder: Path, server: str, area: str, name: str, asked: ContinuumMember
) -> AsyncIterator[None]:
    """A member that tells how it is, and asks the member `asked`, if that is of its area."""
    clock = SystemClock()
    membership = NodeIdentity(folder, clock)
    with Client(server) as client:
        token = make_token(client)
    place = await membership.join(server, token, name)
    here = NodeId(place.node)
    sock = socket.create_server(("127.0.0.1", 0))
    address = "{}:{}".format(*sock.getsockname())
    listener = MemberLinkServer(
        here, IdleMember(STANDING), membership.serving_context, clock, SETTINGS, access=OpenAccess()
    )
    listener.listen(sock)
    links = LinkPool(
        here,
        membership.context,
        clock,
        SETTINGS,
        timeout_s=SETTINGS.neighbour_timeout_s,
        access=OpenAccess(),
    )
    asking = [asyncio.create_task(keep_asking(links, asked))] if area == asked.area else []
    try:
        # The server goes by this for as long as the node is registered, connected or not.
        async with GrpcControlDialer(place.grpc, membership.context).dial() as connection:
            await connection.hello(
                NodeHello(name, member=ContinuumMember(here, name, area, CLOUD, address, 4096, 4.0))
            )
        yield
    finally:
        await tasks.cancel_and_wait(asking)
        await links.close()
        await listener.stop(0.0)


async def keep_asking(links: LinkPool, asked: ContinuumMember) -> None:
    await asyncio.sleep(random.random() * SETTINGS.ping_s)  # so that they do not all ask together
    while True:
        await links.ping(asked, STANDING)
        await asyncio.sleep(SETTINGS.ping_s)
