"""What the web console costs: the overview of a large cloud against that of an empty one, and pages that are
only open.

The overview is made by the console's own endpoint on the real control plane in this process, whose nodes
pretend (`skerry.sim`). Pages that are open are connections to a whole Skerry, which fetch what their browser
would: the stream of changes, and the figures of the overview every ten seconds.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from bench.cluster import run, running_instances
from bench.figures import Figure
from bench.serving import skerry
from skerry.console.asset_catalog import AssetCatalog
from skerry.console.context import ConsoleContext, MarketView
from skerry.console.hub import ChangeHub
from skerry.console.pages import overview
from skerry.console.rendering import Renderer
from skerry.console.statistics import CallCounters, CallStatistics
from skerry.console.usage_history import STEPS, UsageHistory
from skerry.console.view_cache import ViewCache
from skerry.kit.clock import SystemClock
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.ids import CloudId
from skerry.sim.cluster.server import SimulatedServer
from skerry.transport.http.endpoints import RawBody, RequestContext

NODES, INSTANCES = 200, 1_000
CONSOLES, TICK_S, REST_S = 100, 10.0, 20.0
_PAINTS = 40
_ADMIN = Caller(origin=AuthMethod.LOOPBACK, name="bench", role=Role.ADMIN)


class Paint(NamedTuple):
    """One rendering of the overview."""

    size: int
    cpu_s: float


def measure() -> Iterator[Figure]:
    empty, large = run(_paint(1, 0)), run(_paint(NODES, INSTANCES))
    name = f"overview of {INSTANCES:,} instances on {NODES} nodes, of that of none"
    yield Figure(
        f"{name}: bytes",
        large.size / empty.size,
        "x",
        at_most=10.0,
        peer=empty.size,
        peer_unit="bytes",
        peer_name="that of none",
    )
    yield Figure(
        f"{name}: processor time",
        large.cpu_s / empty.cpu_s,
        "x",
        at_most=10.0,
        peer=empty.cpu_s * 1e3,
        peer_unit="ms",
        peer_name="that of none",
    )
    alone, watched = _rest()
    yield Figure(
        f"{CONSOLES} open consoles at rest",
        (watched - alone) * 100,
        "% of a core",
        at_most=10.0,
        note="their HTTP requests included",
        peer=alone * 100,
        peer_unit="% of a core",
        peer_name="without any",
    )


def context_of(server: SimulatedServer) -> ConsoleContext:
    """The console of a simulated server, which has neither functions nor a market."""
    clock = SystemClock()
    history = UsageHistory(server.instances.usages, lambda: 0, clock)
    for _ in range(STEPS):
        history.sample()
    unused = cast(Any, None)  # by the overview
    hub = ChangeHub(clock)
    plane = SimpleNamespace(clock=clock, warnings=[], lacking=[], unreachable=list)
    return ConsoleContext(
        plane=cast(Any, plane),
        renderer=Renderer(AssetCatalog(), hub.position),
        hub=hub,
        streams=ConsoleContext.stream_limit(),
        nodes=server.nodes,
        instances=server.instances,
        services=server.services,
        functions=cast(Any, SimpleNamespace(all=list)),
        calls=CallStatistics(lambda: CallCounters({}), clock),
        history=history,
        function_calls=unused,
        jobs=unused,
        identity=unused,
        overviews=ViewCache(hub, clock),
        market=MarketView(
            cast(Any, SimpleNamespace(contracts=list)),
            cast(Any, SimpleNamespace(borrowed=list)),
            CloudId("bench"),
            unused,
        ),
        read_logs=unused,
        volumes=unused,
        secrets=unused,
        routes=unused,
        problem_of_route=unused,
        network_map=unused,
        open_terminal=unused,
        workloads=unused,
        list_cells=unused,
    )


async def _paint(nodes: int, instances: int) -> Paint:
    async with running_instances(nodes, instances) as server:
        context = context_of(server)
        call = RequestContext(caller=_ADMIN, request_id="bench", address="", headers={})
        took, size = [], 0
        for _ in range(_PAINTS):
            began = time.process_time()
            reply = await overview.show.handle(context, call)
            took.append(time.process_time() - began)
            assert isinstance(reply.value, RawBody)
            size = len(reply.value.content)
            await asyncio.sleep(0)
        return Paint(size, statistics.median(took))


class _Session:
    """A browser that is signed in."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc
        self._url = url
        code = str(self._post("/console/link")[1]["path"]).partition("#")[2]
        reply, _ = self._post("/console/login", {"code": code}, Origin=url)
        self._cookie = str(reply.headers["set-cookie"]).partition(";")[0]

    def _post(
        self, path: str, body: dict[str, str] | None = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, Any]:
        with closing(http.client.HTTPConnection(self._host)) as connection:
            text = None if body is None else json.dumps(body)
            connection.request("POST", path, text, {"Content-Type": "application/json", **headers})
            reply = connection.getresponse()
            content = reply.read()
            if reply.status >= 300:
                raise RuntimeError(f"POST {path} was answered with {reply.status}: {content.decode()}")
            return reply, json.loads(content) if content else None

    def get(self, path: str, **headers: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, timeout=60)
        connection.request("GET", path, headers={"Cookie": self._cookie, **headers})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"GET {path} was answered with {reply.status}")
        return connection, reply

    def refresh(self) -> None:
        """What a page asks for with every tick."""
        connection, reply = self.get("/console", **{"HX-Request": "true", "HX-Target": "overview"})
        with closing(connection):
            reply.read()


def _rest() -> tuple[float, float]:
    """The share of a core that a server takes without consoles, and with them."""
    with skerry() as ready:
        session = _Session(str(ready["http"]))
        session.refresh()
        topics = "nodes,instances,services,functions,market"
        time.sleep(5)
        began, cpu = time.monotonic(), _cpu_s(int(ready["pid"]))
        time.sleep(REST_S)
        alone = (_cpu_s(int(ready["pid"])) - cpu) / (time.monotonic() - began)
        streams = [session.get(f"/console/stream?topics={topics}")[0] for _ in range(CONSOLES)]
        try:
            began, cpu = time.monotonic(), _cpu_s(int(ready["pid"]))
            for number in range(round(CONSOLES * REST_S / TICK_S)):
                session.refresh()
                time.sleep(max(0.0, began + (number + 1) * TICK_S / CONSOLES - time.monotonic()))
            watched = (_cpu_s(int(ready["pid"])) - cpu) / (time.monotonic() - began)
        finally:
            for stream in streams:
                stream.close()
        return alone, watched


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
