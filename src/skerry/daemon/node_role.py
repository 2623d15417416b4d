"""A node: a machine of a cloud whose servers are elsewhere, put together step by step."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

from skerry.daemon import functions, node_agent, node_leave, node_runtime
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
from skerry.node.agent.node_identity import NodeIdentity
from skerry.node.agent.revocations import RevocationList
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.transport import addresses
from skerry.transport.access import gate
from skerry.transport.grpc import channels
from skerry.transport.http.server import HttpServer


async def start(context: RoleContext, admission: JoinCredentials) -> RoleHandle:
    """Join the cloud that `admission` is for, or go on in it, and run what its servers order."""
    settings, folder, clock, undo = context.settings, context.folder, context.clock, context.undo
    http_socket = None
    if settings.node.http:
        gate.check_exposure(addresses.split_host_port(settings.node.http, "--http")[0], tls=False)
        http_socket = undo.enter_context(addresses.bind(settings.node.http, "--http"))
    membership = NodeIdentity(folder / "node", clock)
    name = node_name(settings, socket.gethostname())
    place = await membership.join(
        settings.node.join, admission.token, name, fingerprint=admission.fingerprint
    )
    if membership.left_cloud:
        await node_leave.remove_runtime(settings, folder, clock)
        (folder / "node" / REVOKED_FILE).unlink(missing_ok=True)
    node_leave.save_settings(folder, settings)
    host = await asyncio.to_thread(addresses.local_address, place.grpc)  # may ask a name server
    neighbours_socket = functions.bind_member_socket(context, host)
    servers = ServerAddressCache(place.grpc, folder / node_leave.SERVERS_FILE, also=place.also)
    revocations = RevocationList(folder / "node" / REVOKED_FILE, clock)

    async def renew(request: bytes) -> bytes:
        *others, last = servers.addresses
        for address in others:
            with suppress(errors.Unavailable, errors.TimedOut):
                return await _renew_at(address, membership, request)
        return await _renew_at(last, membership, request)

    loops = await undo.enter_async_context(TaskSupervisor("node", clock=clock))
    loops.forever("certificate", lambda: membership.run(renew))
    disk = await watch_disk(folder, loops)
    unix_path = addresses.unix_socket(settings.grpc.socket, folder)
    access_gate = gate.AccessGate(
        CertificateVerifier(place.node, clock, revocations),
        os.geteuid(),
        local_trust=settings.identity.local_trust,
    )
    node = await node_runtime.start(
        context,
        gate=access_gate,
        tls=membership.serving_context,
        socket_path=unix_path,
        checks={"disk": takes_writes(disk)},
        has_server=False,
    )
    failures = [loops.failed, node.failed]
    url = f"http://{addresses.display_address(http_socket)}" if http_socket is not None else ""
    routes = None
    if node.cells is not None and node.engine is not None:
        heard = await MemberSync.open(folder / functions.FOLDER, settings.functions, clock)
        member = functions.describe_member(
            NodeId(place.node), name, settings, neighbours_socket, runs_functions=True
        )
        here = LocalMember(
            member,
            heard.members,
            membership.context,
            membership.serving_context,
            revocations,
            neighbours_socket,
            lambda: servers.addresses,
        )
        served = await functions.start_replica(context, heard.copies, here, node, server=place.url, url=url)
        routes = served.routes
        failures.append(served.failed)
        link = ServerLink(servers, membership.context, revocations, heard)
        await node_agent.start(context, node.engine, member, link, disk, loops)
    if http_socket is not None:
        http = HttpServer(
            build_node_app(settings, clock, access_gate, routes),
            settings.http,
            trusted_uids=access_gate.trusted_uids,
        )
        undo.push_async_callback(http.stop, settings.stop_timeout_s * DRAIN_SHARE)
        await http.start(http_socket, None)
        failures.append(http.failed)
    ready = {
        "node": place.node,
        "name": name,
        "joined": membership.outcome,
        "server": place.url,
        "http": url,
        "grpc": place.grpc,
        "socket": str(unix_path),
        "ca": str(membership.authority_file),
        "client_cert": str(membership.certificate_file),
        "client_key": str(membership.key_file),
        "lacking": node.lacking,
        "warnings": node.warnings,
    }
    return ready, lambda: race(*(failed() for failed in failures))


async def _renew_at(address: str, membership: NodeIdentity, request: bytes) -> bytes:
    connection = channels.dial(address, membership.context)
    try:
        return await channels.renew_certificate(connection, request)
    finally:
        connection.close()
