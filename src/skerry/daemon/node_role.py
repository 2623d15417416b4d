"""A node: a machine of a cloud whose servers are elsewhere, put together step by step."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from skerry.daemon import functions, names, node_agent, node_leave, node_runtime, web_functions
from skerry.daemon.functions import LocalMember
from skerry.daemon.http import build_node_app
from skerry.daemon.node_agent import ServerLink
from skerry.daemon.role_parts import (
    DRAIN_SHARE,
    REVOKED_FILE,
    RoleContext,
    RoleHandle,
    node_name,
    takes_writes,
    watch_disk,
)
from skerry.functions.continuum.member_sync import MemberSync
from skerry.kit.tasks import TaskSupervisor, race
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.invitations import JoinCredentials
from skerry.node.agent.certificates import CertificateVerifier
from skerry.node.agent.node_identity import JoinRecord, NodeIdentity
from skerry.node.agent.revocations import RevocationList
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.transport import addresses
from skerry.transport.access import gate
from skerry.transport.grpc import channels
from skerry.transport.http.server import HttpServer


@dataclass(frozen=True, slots=True)
class _Membership:
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


async def start(context: RoleContext, admission: JoinCredentials) -> RoleHandle:
    """Join the cloud that `admission` is for, or continue in it, and run what its servers order."""
    settings, folder, clock = context.settings, context.folder, context.clock
    http_socket = _bind_http(context)
    membership = await _join(context, admission)
    host = await asyncio.to_thread(addresses.local_address, membership.record.grpc)  # may ask a name server
    neighbours_socket = functions.bind_member_socket(context, host)
    loops = await context.undo.enter_async_context(TaskSupervisor("node", clock=clock))
    loops.forever("certificate", lambda: membership.identity.run(membership.renew))
    disk = await watch_disk(folder, loops)
    unix_path = addresses.unix_socket(settings.grpc.socket, folder)
    access_gate = gate.AccessGate(
        CertificateVerifier(membership.record.node, clock, membership.revocations),
        os.geteuid(),
        local_trust=settings.identity.local_trust,
    )
    node = await node_runtime.start(
        context,
        gate=access_gate,
        tls=membership.identity.serving_context,
        socket_path=unix_path,
        checks={"disk": takes_writes(disk)},
        has_server=False,
    )
    failures = [loops.failed, node.failed]
    url = f"http://{addresses.display_address(http_socket)}" if http_socket is not None else ""
    routes = None
    if node.cells is not None and node.engine is not None:
        synced = await MemberSync.open(folder / functions.FOLDER, settings.functions, clock)
        here = _local_member(context, membership, synced, neighbours_socket)
        served = await functions.start_replica(
            context, synced.copies, here, node, server=membership.record.url, url=url
        )
        routes = served.routes
        failures.append(served.failed)
        link = ServerLink(
            membership.servers,
            membership.identity.context,
            membership.revocations,
            synced,
            names.function_lookup(synced.copies.get),
        )
        await node_agent.start(context, node.engine, here.member, link, disk, loops)
    web_path = ""
    if routes is not None:
        web_server, path = web_functions.serve_socket(context, access_gate, routes)
        context.undo.push_async_callback(web_server.stop, settings.stop_timeout_s * DRAIN_SHARE)
        failures.append(web_server.failed)
        web_path = str(path)
    if http_socket is not None:
        http = HttpServer(
            build_node_app(settings, clock, access_gate, routes),
            settings.http,
            trusted_uids=access_gate.trusted_uids,
        )
        context.undo.push_async_callback(http.stop, settings.stop_timeout_s * DRAIN_SHARE)
        await http.start(http_socket, None)
        failures.append(http.failed)
    ready = _ready(membership) | {
        "http": url,
        "web_socket": web_path,
        "socket": str(unix_path),
        "lacking": node.lacking,
        "warnings": node.warnings,
    }
    return ready, lambda: race(*(failed() for failed in failures))


def _bind_http(context: RoleContext) -> socket.socket | None:
    listen = context.settings.node.http
    if not listen:
        return None
    gate.check_exposure(addresses.split_host_port(listen, "--http")[0], tls=False)
    return context.undo.enter_context(addresses.bind(listen, "--http"))


async def _join(context: RoleContext, admission: JoinCredentials) -> _Membership:
    """Join, or find that this machine has joined before; what is left of another cloud is removed."""
    settings, folder, clock = context.settings, context.folder, context.clock
    identity = NodeIdentity(folder / "node", clock)
    name = node_name(settings, socket.gethostname())
    record = await identity.join(settings.node.join, admission.token, name, fingerprint=admission.fingerprint)
    if identity.has_left_cloud:
        await node_leave.remove_runtime(settings, folder, clock)
        (folder / "node" / REVOKED_FILE).unlink(missing_ok=True)
    node_leave.save_settings(folder, settings)
    return _Membership(
        name,
        identity,
        record,
        ServerAddressCache(record.grpc, folder / node_leave.SERVERS_FILE, also=record.also),
        RevocationList(folder / "node" / REVOKED_FILE, clock),
    )


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


async def _renew_at(address: str, membership: NodeIdentity, request: bytes) -> bytes:
    connection = channels.dial(address, membership.context)
    try:
        return await channels.renew_certificate(connection, request)
    finally:
        connection.close()
