"""What a process is made of: the one place that knows all parts and puts them together.

`start` opens what a role needs, in order, and undoes it in reverse, also when a step in between fails. The
parts know nothing of each other beyond what they are given here. How a process begins and ends is
`skerry.daemon.process`.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skerry import __version__
from skerry.control.events import EventLog
from skerry.control.identity import Identity
from skerry.control.plane import Plane
from skerry.daemon import addresses, agent, cluster, continuum, credentials, functions, market, runtime
from skerry.daemon.continuum import Here, NodeMember
from skerry.kit import files
from skerry.kit.clock import Clock
from skerry.kit.ids import new_id
from skerry.kit.tasks import Keeper
from skerry.model import errors, ids
from skerry.model.ids import NodeId
from skerry.model.members import Member
from skerry.model.settings import Settings
from skerry.node.callers import CertificateCallers
from skerry.node.membership import Membership
from skerry.node.servers import KnownServers
from skerry.store.opening import open_store
from skerry.store.protocol import Store
from skerry.wire import gate, peers
from skerry.wire.grpc import channel, standard
from skerry.wire.grpc.identity import IdentityService
from skerry.wire.grpc.server import GrpcServer
from skerry.wire.http.app import build_app, build_node_app
from skerry.wire.http.server import HttpServer

# Of the time for a clean stop, what requests that are under way get; the rest is for the loops and the store.
_DRAIN_SHARE = 0.7
_SERVERS_FILE = "servers.json"  # in the data folder of a node


@dataclass(frozen=True, slots=True)
class Running:
    """A role that serves."""

    addresses: dict[str, Any]  # fields of `process.Ready`
    failed: Callable[[], Awaitable[None]]  # returns or raises only when the role cannot go on
    stop: Callable[[], Awaitable[None]]


Serving = tuple[dict[str, Any], Callable[[], Awaitable[None]]]  # `Running` without its stop


async def start(
    role: str, settings: Settings, folder: Path, *, clock: Clock, join_token: str | None
) -> Running:
    """Bring `role` up, wholly or not at all."""
    async with AsyncExitStack() as undo:
        if role == "node":
            told, failed = await _start_node(settings, folder, clock, join_token, undo)
        else:
            told, failed = await _start_server(role, settings, folder, clock, undo)
        return Running(told, failed, stop=undo.pop_all().aclose)


async def _start_server(
    role: str, settings: Settings, folder: Path, clock: Clock, undo: AsyncExitStack
) -> Serving:
    http_host, _ = addresses.split(settings.http.listen, "--http")
    gate.check_exposure(http_host, tls=settings.http.tls)
    # Addresses first: a port that is taken is the likeliest thing to be wrong, and the cheapest to find out.
    http_socket = undo.enter_context(addresses.bind(settings.http.listen, "--http"))
    grpc_socket = undo.enter_context(addresses.bind(settings.grpc.listen, "--grpc"))
    neighbours_socket = _bind_for_neighbours(settings, undo)
    unix_path = addresses.unix_socket(settings.grpc.socket, folder)

    authority = credentials.open_authority(folder, clock)
    store = await open_store(settings.store, folder, clock)
    undo.push_async_callback(store.close)
    # Entered after the store, so that it is left before it: loops must not outlive what they use.
    loops = await undo.enter_async_context(Keeper("server", clock=clock))
    events = EventLog(store, clock, settings.events)
    identity = Identity(store, events, authority, clock, settings.identity)
    loops.forever("identity", identity.run, critical=True)
    loops.forever("events", events.run)
    await loops.unless_failed(identity.ready())
    host_name = socket.gethostname().lower()
    node_id = NodeId(await asyncio.to_thread(_node_id, folder, clock))
    own = credentials.Credentials(
        folder, identity, authority, settings, clock, host_name=host_name, node=node_id
    )
    await own.prepare()
    loops.forever("credentials", own.run)

    door = gate.Gate(identity, os.geteuid())
    checks = {"store": _store_answers(store)}
    failures: list[Callable[[], Awaitable[None]]] = [loops.failed]
    http_address, grpc_address = addresses.shown(http_socket), addresses.shown(grpc_socket)
    scheme = "https" if settings.http.tls else "http"
    registry = await functions.open_registry(
        store,
        events,
        settings.functions,
        folder / "functions",
        clock,
        most=lambda: continuum.most_of([member, *fleet.members.all]),
    )
    fleet = cluster.start(
        store,
        events,
        identity,
        clock,
        settings.fleet,
        functions=registry,
        fingerprint=authority.fingerprint,
        server=f"{scheme}://{_advertised(http_address, settings)}",
        grpc=_advertised(grpc_address, settings),
        node=node_id,
        tls=own.client_context,
        loops=loops,
    )
    await loops.unless_failed(fleet.ready())
    trade = await market.start(
        store,
        events,
        clock,
        settings.market,
        folder / "pki",
        authority,
        fleet,
        domain=host_name,
        url=f"{scheme}://{_advertised(http_address, settings)}",
        loops=loops,
        undo=undo,
    )
    fleet.place()  # not before it is known what room is promised to buyers
    lacking: tuple[str, ...] = ()
    cells, engine = None, None
    if role == "up":
        node = await runtime.start(
            settings,
            folder,
            clock,
            gate=door,
            tls=own.contexts.grpc,
            socket_path=unix_path,
            checks=checks,
            undo=undo,
        )
        failures.append(node.failed)
        lacking, cells, engine = node.lacking, node.cells, node.engine
    member = _member(
        node_id,
        settings.node.name or _node_name(host_name),
        settings,
        neighbours_socket,
        runs_functions=cells is not None,
    )
    here = Here(
        member,
        fleet.members,
        own.node_context,
        own.contexts.grpc,
        identity.counts,
        neighbours_socket,
        lambda: [address for address in fleet.servers.addresses if address != fleet.servers.address],
    )
    served = await functions.start(
        registry,
        here,
        cells,
        engine,
        settings.functions,
        folder / "functions",
        clock,
        url=f"{scheme}://{_advertised(http_address, settings)}",
        stop_timeout_s=settings.stop_timeout_s,
        undo=undo,
    )
    failures.append(served.failed)
    if engine is None:  # else it is a member by its session, like all nodes
        lease_s = math.ceil(settings.functions.result_ttl_s)
        loops.forever("member", lambda: fleet.members.stay(member, lease_s=lease_s))
    plane = Plane(
        settings=settings,
        clock=clock,
        store=store,
        identity=identity,
        events=events,
        authority=authority,
        started_at=clock.now(),
        checks=checks,
        lacking=lacking,
    )
    services = [IdentityService(identity), *fleet.services]
    grpc = GrpcServer(standard.beside(services, checks), door, settings.grpc, clock=clock)
    app = build_app(
        plane,
        door,
        lambda: _advertised(grpc_address, settings),
        fleet.kudo,
        served.routes,
        trade.rear,
        trade.desk,
    )
    http = HttpServer(app, settings.http)

    async def drain() -> None:
        fleet.sessions.close()
        within_s = settings.stop_timeout_s * _DRAIN_SHARE
        await asyncio.gather(http.stop(within_s), grpc.stop(within_s))

    undo.push_async_callback(drain)
    plain_grpc = peers.is_loopback(grpc_socket.getsockname()[0])
    await grpc.listen_tcp(grpc_socket, own.contexts.grpc, plaintext=plain_grpc)
    if role != "up":
        await grpc.listen_unix(unix_path, own.contexts.grpc)
    await http.start(http_socket, own.contexts.http if settings.http.tls else None)
    if engine is not None:
        await agent.start(
            engine,
            folder,
            clock,
            name=settings.node.name or _node_name(host_name),
            labels=_labels(settings.node.labels),
            kept_mb=member.memory,
            member=member,
            servers=KnownServers(_dialable(grpc_address), folder / _SERVERS_FILE),
            tls=own.node_context,
            max_guest_instances=settings.market.max_guests,
            loops=loops,
            undo=undo,
        )
    await events.record(
        "server.started", f"server/{socket.gethostname()}", actor="skerry", version=__version__
    )

    told = {
        "http": f"{scheme}://{_dialable(http_address)}",
        "grpc": _dialable(grpc_address),
        "socket": str(unix_path),
        "ca": str(own.ca_file),
        "client_cert": str(own.client_certificate_file),
        "client_key": str(own.client_key_file),
        "lacking": plane.lacking,
    }
    return told, lambda: _first(http.failed(), *(failed() for failed in failures))


async def _start_node(
    settings: Settings, folder: Path, clock: Clock, join_token: str | None, undo: AsyncExitStack
) -> Serving:
    http_socket = None
    if settings.node.http:
        gate.check_exposure(addresses.split(settings.node.http, "--http")[0], tls=False)
        http_socket = undo.enter_context(addresses.bind(settings.node.http, "--http"))
    neighbours_socket = _bind_for_neighbours(settings, undo)
    membership = Membership(folder / "node", clock)
    name = settings.node.name or _node_name(socket.gethostname())
    place = await membership.join(settings.node.join, join_token or "", name)
    servers = KnownServers(place.grpc, folder / _SERVERS_FILE)

    async def renew(request: bytes) -> bytes:
        *others, last = servers.addresses
        for address in others:
            with suppress(errors.Unavailable, errors.TimedOut):
                return await _renew_at(address, membership, request)
        return await _renew_at(last, membership, request)

    loops = await undo.enter_async_context(Keeper("node", clock=clock))
    loops.forever("certificate", lambda: membership.run(renew))
    unix_path = addresses.unix_socket(settings.grpc.socket, folder)
    door = gate.Gate(CertificateCallers(place.node, clock), os.geteuid())
    node = await runtime.start(
        settings,
        folder,
        clock,
        gate=door,
        tls=membership.serving_context,
        socket_path=unix_path,
        checks={},
        undo=undo,
    )
    failures = [loops.failed, node.failed]
    url = f"http://{addresses.shown(http_socket)}" if http_socket is not None else ""
    routes = None
    if node.cells is not None and node.engine is not None:
        heard = await NodeMember.open(folder / "functions", settings.functions, clock)
        member = _member(NodeId(place.node), name, settings, neighbours_socket, runs_functions=True)
        here = Here(
            member,
            heard.members,
            membership.context,
            membership.serving_context,
            lambda serial: True,  # which were revoked is the server's to know
            neighbours_socket,
            lambda: servers.addresses,
        )
        served = await functions.start_copies(
            heard.copies,
            here,
            node.cells,
            node.engine,
            settings.functions,
            folder / "functions",
            clock,
            server=place.url,
            url=url,
            stop_timeout_s=settings.stop_timeout_s,
            undo=undo,
        )
        routes = served.routes
        failures.append(served.failed)
        await agent.start(
            node.engine,
            folder,
            clock,
            name=name,
            labels=_labels(settings.node.labels),
            kept_mb=member.memory,
            member=member,
            hears=heard,
            servers=servers,
            tls=membership.context,
            max_guest_instances=settings.market.max_guests,
            loops=loops,
            undo=undo,
        )
    if http_socket is not None:
        http = HttpServer(build_node_app(settings, clock, door, routes), settings.http)
        undo.push_async_callback(http.stop, settings.stop_timeout_s * _DRAIN_SHARE)
        await http.start(http_socket, None)
        failures.append(http.failed)
    told = {
        "node": place.node,
        "http": url,
        "grpc": place.grpc,
        "socket": str(unix_path),
        "ca": str(membership.authority_file),
        "client_cert": str(membership.certificate_file),
        "client_key": str(membership.key_file),
        "lacking": node.lacking,
    }
    return told, lambda: _first(*(failed() for failed in failures))


def _bind_for_neighbours(settings: Settings, undo: AsyncExitStack) -> socket.socket | None:
    listen = settings.functions.neighbours
    return undo.enter_context(addresses.bind(listen, "functions.neighbours")) if listen else None


def _member(
    node: NodeId, name: str, settings: Settings, listening: socket.socket | None, *, runs_functions: bool
) -> Member:
    """What others who take calls of functions know of this process."""
    address = settings.functions.neighbour_address
    if not address and listening is not None:
        address = _advertised(addresses.shown(listening), settings)
    return Member(
        node,
        name,
        settings.functions.area,
        settings.functions.remote_area,
        address,
        functions.memory_of(settings.functions) if runs_functions else 0,
        functions.cpus_of(settings.functions) if runs_functions else 0.0,
        is_server=not runs_functions,
    )


async def _renew_at(address: str, membership: Membership, request: bytes) -> bytes:
    connection = channel.dial(address, membership.context)
    try:
        return await channel.renew(connection, request)
    finally:
        connection.close()


def _store_answers(store: Store) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        await store.revision()

    return check


async def _first(*waits: Awaitable[None]) -> None:
    """Wait until one of `waits` ends, with its result; the others are given up."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_LOOPBACK_FOR = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - what to dial, not what to bind


def _dialable(address: str) -> str:
    """An address that this machine itself can dial: a wildcard means loopback."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK_FOR.get(host, host)}:{port}"


def _advertised(grpc_address: str, settings: Settings) -> str:
    """The gRPC address that a joining node is told: a wildcard means this machine's name."""
    host, _, port = grpc_address.rpartition(":")
    if host in _LOOPBACK_FOR:
        host = settings.http.names[0] if settings.http.names else socket.gethostname()
    return f"{host}:{port}"


def _node_id(folder: Path, clock: Clock) -> str:
    """Which node this machine is, of a cloud whose server is here too; the same for as long as its data."""
    path = folder / "node.id"
    try:
        return ids.check_id(path.read_text().strip())
    except FileNotFoundError:
        made = new_id(clock.now())
        files.write_atomically(path, f"{made}\n".encode())
        return made


def _labels(texts: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise errors.Invalid(f"node.labels: {text[:40]!r} must read KEY=VALUE", field="node.labels")
        labels[ids.check_id(key, "node.labels")] = ids.check_label(value, "node.labels")
    return labels


def _node_name(host: str) -> str:
    """The host name as a node name: letters, digits, dots and dashes, at most 63."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", host)[:63].strip(".-")
    if not plain:
        raise errors.Invalid("this machine's host name gives no node name; choose one with --name")
    return plain
