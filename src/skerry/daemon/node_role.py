"""A node: a machine of a cloud whose servers are elsewhere, put together step by step."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from skerry import __version__
from skerry.daemon import (
    edge_routes,
    functions,
    log_forwarding,
    names,
    node_agent,
    node_http,
    node_leave,
    node_runtime,
    trace_export,
    web_functions,
)
from skerry.daemon.functions import LocalMember
from skerry.daemon.node_agent import ServerLink
from skerry.daemon.node_http import NodeDescription
from skerry.daemon.role_parts import (
    DRAIN_SHARE,
    REVOKED_FILE,
    RoleContext,
    RoleHandle,
    StepReport,
    node_name,
    takes_writes,
    watch_disk,
)
from skerry.functions.continuum.member_sync import MemberSync
from skerry.kit import metrics, namespace_marker, pki
from skerry.kit.certificate_metrics import CertificateFileMetrics
from skerry.kit.tasks import TaskSupervisor, race
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.invitations import JoinCredentials
from skerry.node.agent.certificates import CertificateVerifier
from skerry.node.agent.network_state import NetworkState
from skerry.node.agent.node_identity import JoinRecord, NodeIdentity
from skerry.node.agent.revocations import RevocationList
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.store import data_stamp
from skerry.transport import addresses
from skerry.transport.access import gate
from skerry.transport.grpc import channels


class _Membership(msgspec.Struct, frozen=True):
    """This machine as a node of its cloud: its identity, and what it knows of servers and revocations."""

    name: str
    identity: NodeIdentity
    record: JoinRecord
    servers: ServerAddressCache
    revocations: RevocationList

    async def renew(self, request: bytes) -> bytes:
        """A new certificate from the first server that answers."""
        *others, last = self.servers.addresses
        for address in others:
            with suppress(errors.Unavailable, errors.TimedOut):
                return await _renew_at(address, self.identity, request)
        return await _renew_at(last, self.identity, request)

    async def request_edge(self, request: bytes, hosts: Sequence[str]) -> tuple[bytes, tuple[str, ...]]:
        """A certificate for the HTTPS listener from the first server that answers."""
        *others, last = self.servers.addresses
        for address in others:
            with suppress(errors.Unavailable, errors.TimedOut):
                return await _request_edge_at(address, self.identity, request, hosts)
        return await _request_edge_at(last, self.identity, request, hosts)


async def start(context: RoleContext, admission: JoinCredentials, report: StepReport) -> RoleHandle:
    """Join the cloud that `admission` is for, or continue in it, and run what its servers order."""
    settings, folder, clock = context.settings, context.folder, context.clock
    http_socket = node_http.bind(context)
    await asyncio.to_thread(data_stamp.write_if_new, folder)
    await trace_export.start(context, "node", node_name(settings, socket.gethostname()))
    report("joining the cloud, or returning to it")
    membership = await _join(context, admission)
    host = await asyncio.to_thread(addresses.local_address, membership.record.grpc)  # may ask a name server
    neighbours_socket = functions.bind_member_socket(context, host)
    functions.store_member_port(context, neighbours_socket)
    loops = await context.undo.enter_async_context(TaskSupervisor("node", clock=clock))
    loops.forever("certificate", lambda: membership.identity.run(membership.renew))
    _export_metrics(context, loops, membership)
    disk = await watch_disk(folder, loops)
    unix_path = addresses.unix_socket(settings.grpc.socket, folder)
    certificates = CertificateVerifier(membership.record.node, clock, membership.revocations)
    access_gate = gate.AccessGate(
        certificates, namespace_marker.own_uid(), local_trust=settings.identity.local_trust
    )
    authority_pem = await asyncio.to_thread(membership.identity.authority_file.read_bytes)
    access = await node_http.open_access(context, folder / "node", authority_pem, certificates, loops)
    checks = {"disk": takes_writes(disk)}
    report("preparing cells and containers on this machine")
    node = await node_runtime.start(
        context,
        gate=access_gate,
        tls=membership.identity.serving_context,
        socket_path=unix_path,
        checks=checks,
        has_server=False,
    )
    failures = [loops.failed, node.failed]
    url = http_socket.local_url if http_socket is not None else ""
    routes = None
    report("starting functions and the agent of this node")
    if node.cells is not None and node.engine is not None:
        synced = await MemberSync.open(folder / functions.FOLDER, settings.functions, clock)
        here = _local_member(context, membership, synced, neighbours_socket)
        served = await functions.start_replica(
            context, synced.copies, here, node, server=membership.record.url, url=url
        )
        routes = served.routes
        failures.append(served.failed)

        def follow(network: NetworkState) -> None:
            access.verifier.follow(network)
            membership.identity.follow(network)

        link = ServerLink(
            membership.servers,
            membership.identity.context,
            membership.revocations,
            synced,
            names.function_lookup(synced.copies.get),
            follow,
            access.contact.note,
            # Not before: a node whose version is refused goes back to the one that its folder has.
            accepted=lambda: data_stamp.write(folder),
        )
        await node_agent.start(context, node.engine, here.member, served.worker_cells, link, disk, loops)
    else:
        await asyncio.to_thread(data_stamp.write, folder)  # it has no session that could be refused
    web_path = ""
    if routes is not None:
        web_gate = gate.AccessGate(
            access.verifier, namespace_marker.own_uid(), local_trust=settings.identity.local_trust
        )
        key = None if node.engine is None else node.engine.network.key
        path = edge_routes.web_socket(context, key, is_server=False)
        web_server = web_functions.serve_socket(context, web_gate, routes, path)
        context.undo.push_async_callback(web_server.stop, settings.stop_timeout_s * DRAIN_SHARE)
        failures.append(web_server.failed)
        web_path = str(path)
    ready = _ready(membership) | {
        "http": url,
        "web_socket": web_path,
        "socket": str(unix_path),
        "lacking": node.lacking,
    }
    warnings = node.warnings
    if http_socket is not None:
        described = _describe(membership, folder, checks, node.lacking)
        http = await node_http.start(
            context, http_socket, described, access, routes, membership.request_edge, loops
        )
        failures.append(http.failed)
        ready |= {"urls": http.urls}
        warnings = (*warnings, *http.warnings)
    ready |= {"warnings": warnings}
    await log_forwarding.start(context, membership.name, pki.fingerprint(authority_pem))
    return ready, lambda: race(*(failed() for failed in failures))


async def _join(context: RoleContext, admission: JoinCredentials) -> _Membership:
    """Join, or find that this machine has joined before; what is left of another cloud is removed."""
    settings, folder, clock = context.settings, context.folder, context.clock
    identity = NodeIdentity(folder / "node", clock)
    name = node_name(settings, socket.gethostname())
    record = await identity.join(
        settings.node.join,
        admission.token,
        name,
        fingerprint=admission.fingerprint,
        keeps_expired=bool(settings.node.http),  # devices are served without a server
    )
    if identity.has_left_cloud:
        await node_leave.remove_runtime(settings, folder, clock, context.enforcement)
        for name in (REVOKED_FILE, *node_http.MEMBERSHIP_FILES):
            (folder / "node" / name).unlink(missing_ok=True)
    node_leave.save_settings(folder, settings)
    return _Membership(
        name,
        identity,
        record,
        ServerAddressCache(record.grpc, folder / node_leave.SERVERS_FILE, also=record.also),
        RevocationList(folder / "node" / REVOKED_FILE, clock),
    )


def _export_metrics(context: RoleContext, loops: TaskSupervisor, membership: _Membership) -> None:
    """What a node shows of its process beside the metrics of its parts."""
    metrics.BUILD.labels(__version__, "node").set(1)
    certificate = CertificateFileMetrics("node", membership.name, membership.identity.certificate_file)
    metrics.REGISTRY.register(certificate)
    context.undo.callback(metrics.REGISTRY.unregister, certificate)
    loops.forever("certificate.metrics", certificate.run)


def _local_member(
    context: RoleContext,
    membership: _Membership,
    synced: MemberSync,
    neighbours_socket: socket.socket | None,
) -> LocalMember:
    """This node as a member that runs functions."""
    return LocalMember(
        functions.describe_member(
            NodeId(membership.record.node),
            membership.name,
            context.settings,
            neighbours_socket,
            runs_functions=True,
        ),
        synced.members,
        membership.identity.context,
        membership.identity.serving_context,
        membership.revocations,
        neighbours_socket,
        lambda: membership.servers.addresses,
    )


def _ready(membership: _Membership) -> dict[str, Any]:
    """The part of the ready file that is about the membership."""
    identity, record = membership.identity, membership.record
    return {
        "node": record.node,
        "name": membership.name,
        "joined": identity.outcome,
        "server": record.url,
        "grpc": record.grpc,
        "ca": str(identity.authority_file),
        "client_cert": str(identity.certificate_file),
        "client_key": str(identity.key_file),
    }


def _describe(
    membership: _Membership,
    folder: Path,
    checks: dict[str, Callable[[], Awaitable[None]]],
    lacking: tuple[str, ...],
) -> NodeDescription:
    """This node, for those who call its HTTP listener."""
    record = membership.record
    return NodeDescription(
        record.node,
        membership.name,
        record.name,
        record.url,
        folder / "node",
        membership.identity.authority_file,
        checks,
        lacking,
        membership.identity.listen_authorities,
    )


async def _request_edge_at(
    address: str, membership: NodeIdentity, request: bytes, hosts: Sequence[str]
) -> tuple[bytes, tuple[str, ...]]:
    connection = channels.dial(address, membership.context)
    try:
        return await channels.issue_edge_certificate(connection, request, hosts)
    finally:
        connection.close()


async def _renew_at(address: str, membership: NodeIdentity, request: bytes) -> bytes:
    connection = channels.dial(address, membership.context)
    try:
        return await channels.renew_certificate(connection, request)
    finally:
        connection.close()
