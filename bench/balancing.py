"""Virtual addresses of services: what they cost against direct addresses, and how soon all nodes know.

The first part is real packets: two containers' namespaces on the bridge of a node that has a machine to
itself (a network namespace), HAProxy in one, wrk in the other. Both addresses are measured in turns, and the
ratio is the median of the turns.

The second part is a server and 100 nodes in this process: a report about a copy is made durable, sent to all
sessions, encoded and decoded as for the network, and every node compiles its rules. They are not written to a
kernel, of which there is only one here; what `nft` takes for the same change in a table of the same size is
measured beside it and added. The removal of flows, which follows the rules, is left out for the same reason,
and its time is printed. All nodes compile one after the other here, so the figure has the processor time of
100 machines in it. It begins when all nodes have the rules of what they were sent when they connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import NamedTuple

import structlog
from msgspec.structs import replace

from bench.cluster import open_store, until
from bench.figures import Figure
from skerry.control.named_table import key_of
from skerry.control.network.feed import NetworkObjects
from skerry.control.network.node_locations import NodeLocations
from skerry.control.network.service_endpoints import ServiceAddressSource
from skerry.control.services.requests import ServiceSpec
from skerry.control.sessions.feeds import SessionFeeds
from skerry.control.sessions.node_session import NodeSessions
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.container_options import NodeFeature
from skerry.model.ids import InstanceId, Namespace, NodeId, ServiceId
from skerry.model.network_objects import (
    EndpointState,
    NodeLocation,
    ServiceAddress,
    ServiceEndpoint,
    ServicePort,
    ServiceSubnet,
)
from skerry.model.node_messages import NetworkUpdate, NodeHello
from skerry.model.nodes import NodeFacts
from skerry.model.orders import InstanceReport
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.settings import EventSettings, FleetSettings, NetworkSettings
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, InstanceSpec, ObservedState, OwnerKind
from skerry.node.agent.network_state import NetworkState
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.network import Network
from skerry.node.network.service_balancer import ServiceBalancer
from skerry.node.network.subnets import BridgeSubnets, KernelNames, NodeSubnet
from skerry.sim.cluster.server import SimulatedServer
from skerry.transport.links.nodes import network_messages
from skerry.transport.proto import nodes_pb2

NODES, SERVICES, COPIES, CHANGES = 100, 200, 10, 10
TOGETHER = SERVICES * COPIES // NODES
SETTLED_S = 1.0
TURNS, TURN_S = 11, 1
RANGE, WEB = "10.63.0.0/16", "10.63.4.2"
HERE = NodeId("here")
# One for each turn: closed connections are remembered for a minute, and many thousand new ones a second would
# wait for ports instead of being balanced.
FIRST_PORT, LAST_PORT = 8000, 8099
FORGET_FLOWS = Path(
    "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_time_wait"
)  # likewise, in this namespace
_PORTS = (ServicePort(80, 8080),)
_PROXY = f"""\
global
  nbthread 1
defaults
  mode http
  timeout client 10s
  timeout server 10s
  timeout connect 10s
frontend web
  bind 0.0.0.0:{FIRST_PORT}-{LAST_PORT}
  http-request return status 200 content-type text/plain string ok
"""


def measure() -> Iterator[Figure]:
    if os.geteuid() != 0:
        yield Figure("virtual addresses", 0.0, "need root", note="not measured")
        return
    packets = _on_a_machine()
    change_s, name = packets.change_s, "virtual address"
    for what, (ratio, direct) in (
        ("requests on open connections", packets.requests),
        ("new connections", packets.connections),
    ):
        yield Figure(
            f"{what}, {name}",
            ratio,
            "x direct address",
            at_least=0.95,
            peer=direct,
            peer_unit="requests/s",
            peer_name="direct address",
        )
    yield Figure(f"nft for a change of one of {SERVICES} services", change_s * 1000, "ms")
    yield Figure("removal of flows to the closed copy, after that", packets.removal_s * 1000, "ms")
    single, together = asyncio.run(_spread())
    yield Figure(
        f"processor time of a change of readiness, without nft, for each of {NODES} nodes",
        statistics.median(each.cpu_s for each in single) / NODES * 1000,
        "ms",
        note="the server's part included",
    )
    for name, took in (
        (f"readiness of a copy is in the rules of {NODES} nodes, the worst of {CHANGES}", single),
        (f"readiness of all {TOGETHER} copies of a node is, the worst of {CHANGES}", together),
    ):
        p50 = statistics.median(each.known_s for each in took) + change_s
        durable = statistics.median(each.durable_s for each in took)
        yield Figure(
            name,
            max(each.known_s for each in took) + change_s,
            "s",
            at_most=1.0,
            note=f"p50 {p50:.3f} s, durable after {durable:.3f} s; {SERVICES} services of {COPIES} copies",
        )


# Packets


class _PacketFigures(NamedTuple):
    """Requests and connections by the virtual address, against the direct one, with the rates of that, and
    the seconds that a change of rules and the removal of flows take."""

    requests: tuple[float, float]
    connections: tuple[float, float]
    change_s: float
    removal_s: float


def _on_a_machine() -> _PacketFigures:
    """The figures of `_packets`, of a process that is alone in a network namespace."""
    command = ["unshare", "-n", sys.executable, "-m", "bench.balancing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return _PacketFigures(*json.loads(done.stdout.splitlines()[-1]))


def _main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory(prefix="skerry-balancing-") as folder:
        print(json.dumps(asyncio.run(_packets(Path(folder)))))


async def _packets(folder: Path) -> _PacketFigures:
    settings = NetworkSettings(subnet="10.99.0.0/24", pool=0)
    network = await Network(folder / "network", settings, SystemClock(), key="be9c4ba1").open()
    try:
        server, client = await network.attach("server"), await network.attach("client")
        balancer = network.services
        balancer.follow(HERE)
        balancer.ranges_changed({RANGE: ServiceSubnet(RANGE)})
        balancer.locations_changed({HERE: NodeLocation(HERE, "here")})
        services = {each.key: each for each in _others()}
        web = _service(WEB, [ServiceEndpoint(InstanceId("web"), HERE, server.address)])
        balancer.services_changed({**services, web.key: web})
        await balancer.apply()
        config = folder / "haproxy.cfg"
        config.write_text(_PROXY)
        with _process("nsenter", f"--net={server.namespace}", "haproxy", "-db", "-f", str(config)):
            FORGET_FLOWS.write_text("1")
            load = _Load(client.namespace)
            load.run(server.address)  # until it listens
            kept = _ratio(load, server.address)
            fresh = _ratio(load, server.address, "-H", "Connection: close")
        took, removals = [], []
        for turn in range(10):
            key = f"s-{turn}"
            gone = replace(
                services[key],
                endpoints=tuple(
                    replace(each, state=EndpointState.NOT_READY) if number == turn else each
                    for number, each in enumerate(services[key].endpoints)
                ),
            )
            services = {**services, key: gone}
            balancer.services_changed({**services, web.key: web})
            began = time.perf_counter()
            await balancer.write_rules()
            written = time.perf_counter()
            await balancer.apply()
            took.append(written - began)
            removals.append(time.perf_counter() - written)
        await network.keep_only(set())
        return _PacketFigures(kept, fresh, statistics.median(took), statistics.median(removals))
    finally:
        await network.close()


def _ratio(load: _Load, direct: str, *flags: str) -> tuple[float, float]:
    """The median of the turns, of which each measures both, and that of the direct rates."""
    ratios, direct_rates = [], []
    for turn in range(TURNS):
        order = (direct, WEB) if turn % 2 else (WEB, direct)
        rates = {address: load.run(address, *flags) for address in order}
        ratios.append(rates[WEB] / rates[direct])
        direct_rates.append(rates[direct])
    return statistics.median(ratios), statistics.median(direct_rates)


class _Load:
    """wrk in a network namespace."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._ports = iter(range(FIRST_PORT, LAST_PORT + 1))
        ports = "echo '1024 65535' > /proc/sys/net/ipv4/ip_local_port_range"
        subprocess.run(["nsenter", f"--net={place}", "sh", "-c", ports], check=True)

    def run(self, address: str, *flags: str) -> float:
        """Requests a second, on a port of their own."""
        url = f"http://{address}:{next(self._ports)}/"
        command = ["nsenter", f"--net={self._place}", "wrk", "-t1", "-c16", f"-d{TURN_S}s", *flags, url]
        said = ""
        for _ in range(50):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if (found := re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)) and float(found[1]):
                return float(found[1])
            said = done.stdout + done.stderr
            time.sleep(0.1)
        raise RuntimeError(f"wrk: {said}")


@contextlib.contextmanager
def _process(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _service(address: str, endpoints: Sequence[ServiceEndpoint]) -> ServiceAddress:
    return ServiceAddress(
        ServiceId(f"s-{address}"), "web", Namespace("default"), address, endpoints=tuple(endpoints)
    )


def _others() -> Iterator[ServiceAddress]:
    """Services that nobody calls."""
    for number in range(SERVICES):
        endpoints = [
            ServiceEndpoint(
                InstanceId(f"i-{number}-{index}"), NodeId("there"), f"10.98.{number % 250}.{index + 2}"
            )
            for index in range(COPIES)
        ]
        made = _service(str(IPv4Address("10.63.128.0") + number), endpoints)
        yield replace(made, service=ServiceId(f"s-{number}"))


# Readiness


class _NoKernel(NetworkCommands, frozen=True):
    """Takes rules and writes them nowhere."""

    def ip(self, commands: list[str], *, ignore_errors: bool = False) -> None:
        pass

    def nft(self, text: str) -> None:
        pass


class _Node:
    """A node that follows its session."""

    def __init__(self, name: str, folder: Path, sessions: NodeSessions) -> None:
        self.name = name
        self._sessions = sessions
        self._state = NetworkState(folder / f"{name}.json")
        subnets = BridgeSubnets(NodeSubnet("10.99.0.0/24"))
        self._balancer = ServiceBalancer(_NoKernel("", ""), KernelNames("be9c4ba1"), subnets)
        self._balancer.follow(NodeId(name))
        self._state.subscribe(ServiceSubnet, self._balancer.ranges_changed)
        self._state.subscribe(NodeLocation, self._balancer.locations_changed)
        self._state.subscribe(ServiceAddress, self._balancer.services_changed)
        self.applied_at = 0.0
        self._ready: dict[str, int] = {}

    @property
    def ready_copies(self) -> int:
        """As its rules have it."""
        return sum(self._ready.values())

    async def run(self, hello: NodeHello) -> None:
        async with self._sessions.connect(self.name, hello) as session:
            async for message in session.messages():
                if isinstance(message, NetworkUpdate):
                    sent = [each.SerializeToString() for each in network_messages.encode_update(message)]
                    self._state.apply(network_messages.decode_update([_parse(each) for each in sent]))
                    await self._balancer.write_rules()
                    self.applied_at = time.perf_counter()
                    for each in message.objects:
                        if isinstance(each, ServiceAddress):
                            states = [copy.state for copy in each.endpoints]
                            self._ready[each.key] = states.count(EndpointState.READY)


def _parse(data: bytes) -> nodes_pb2.Network:
    return nodes_pb2.Network.FromString(data)


@asynccontextmanager
async def _cloud() -> AsyncIterator[tuple[SimulatedServer, list[_Node], list[Instance]]]:
    settings = FleetSettings(reserve_percent=0)
    resources = Resources(Millicores(10_000), Megabytes(100_000), Gigabytes(1000))
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = SimulatedServer("bench", store, SystemClock(), settings, EventSettings())
        await server.start(leads=False)
        stack.push_async_callback(server.stop)
        feed = NetworkObjects()
        feed.add(NodeLocations(server.nodes))
        feed.add(ServiceAddressSource(server.services.tables, server.instance_table, server.nodes, RANGE))
        sessions = NodeSessions(server.nodes, server.instances, settings, feeds=SessionFeeds(network=feed))
        copies = await _fill(server)
        nodes = [_Node(f"n{number:05}", folder, sessions) for number in range(NODES)]
        facts = NodeFacts("amd64", features=(NodeFeature.NETWORK,))
        tasks = [asyncio.create_task(each.run(NodeHello(each.name, facts, resources))) for each in nodes]
        stack.push_async_callback(cancel_and_wait, tasks)

        async def beat() -> None:
            while True:
                for node in nodes:
                    server.nodes.heartbeats.received(NodeId(node.name))
                await asyncio.sleep(1.0)

        beats = asyncio.create_task(beat())
        stack.push_async_callback(cancel_and_wait, [beats])
        await until(
            lambda: (
                all(each.ready_copies == SERVICES * COPIES for each in nodes)
                and time.perf_counter() - max(each.applied_at for each in nodes) > SETTLED_S
            )
        )
        yield server, nodes, copies


async def _fill(server: SimulatedServer) -> list[Instance]:
    """Services with copies that run and are ready."""
    resources = Resources(Millicores(10), Megabytes(10), Gigabytes(0))
    services, table = server.services.tables.services, server.instance_table
    copies = []
    for number in range(SERVICES):
        spec = InstanceSpec(name=f"web-{number}", uri="example.org/web:1", resources=resources)
        service, _ = await server.services.create(
            ServiceSpec(spec, replicas=COPIES, ports=_PORTS), actor="bench"
        )
        addressed = replace(service, address=str(IPv4Address("10.63.128.0") + number))
        await services.commit([services.put(key_of(service), addressed)])
        made = [
            Instance(
                InstanceId(f"i-{number}-{index}"),
                spec,
                time.time(),
                ObservedState(InstanceStatus.RUNNING, time.time()),
                node=NodeId(f"n{(number + index) % NODES:05}"),
                ip=f"10.64.{(number + index) % NODES}.{number + 2}",
                owner=InstanceOwner(OwnerKind.SERVICE, service.id, service.name, 1, index),
            )
            for index in range(COPIES)
        ]
        await table.commit([table.put(each.id, each) for each in made])
        copies += made
    return copies


class _Change(NamedTuple):
    """Seconds from a report until it is durable, and until the last node has the rules; and of processor
    time."""

    durable_s: float
    known_s: float
    cpu_s: float


async def _spread() -> tuple[list[_Change], list[_Change]]:
    """Changes of one copy, and of all copies of a node."""
    async with _cloud() as (server, nodes, copies):
        by_node: dict[NodeId | None, list[Instance]] = {}
        for each in copies:
            by_node.setdefault(each.node, []).append(each)
        crowded, *others = by_node.values()
        single = [
            await _change(server, nodes, [some[turn]], has_passed=False)
            for turn, some in enumerate(others[:CHANGES])
        ]
        together = [
            await _change(server, nodes, crowded, has_passed=bool(turn % 2)) for turn in range(CHANGES)
        ]
    return single, together


async def _change(
    server: SimulatedServer, nodes: Sequence[_Node], copies: Sequence[Instance], *, has_passed: bool
) -> _Change:
    """The checks of these copies, which are on one node, now pass, or pass no more."""
    now = time.time()
    reports = [
        InstanceReport(
            copy.id,
            copy.generation,
            InstanceStatus.RUNNING,
            now,
            ip=copy.ip,
            has_passed=has_passed,
            checked_at=now,
            check_message="bench",
        )
        for copy in copies
    ]
    expected = nodes[0].ready_copies + (len(copies) if has_passed else -len(copies))
    began, cpu_began = time.perf_counter(), time.process_time()
    await server.instances.reported(copies[0].node, reports)
    durable_s = time.perf_counter() - began
    await until(lambda: all(each.ready_copies == expected for each in nodes))
    cpu_s = time.process_time() - cpu_began
    return _Change(durable_s, max(each.applied_at for each in nodes) - began, cpu_s)


if __name__ == "__main__":
    _main()
