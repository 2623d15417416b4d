"""The HTTP listener of a node: calls of functions, on loopback or for the devices of its network.

Called by `skerry.daemon.node_role`. Off loopback there is TLS, always, and offline tokens or client
certificates say who is calling; both are verified without a server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from skerry.control.identity import edge_names
from skerry.daemon.fronts import open_fronts
from skerry.daemon.role_parts import DRAIN_SHARE, HTTP_SOCKET, REVOKED_TOKENS_FILE, RoleContext
from skerry.kit import namespace_marker, pki
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors
from skerry.model.authority_bundle import AuthorityBundle
from skerry.model.settings import NodeSettings
from skerry.model.token_text import pin_of
from skerry.node.agent.certificates import CertificateVerifier
from skerry.node.agent.listener_certificates import (
    FileListenerCertificate,
    IssuedListenerCertificate,
    ListenerCertificate,
    RequestCertificate,
)
from skerry.node.agent.offline_tokens import OfflineTokenVerifier
from skerry.node.agent.revoked_tokens import RevokedTokenList
from skerry.node.agent.server_contact import ServerContact
from skerry.transport import addresses, host_identity
from skerry.transport.access import gate
from skerry.transport.access.attempts import LimitedGate
from skerry.transport.http.server import HttpServer
from skerry.wire.serverledge.context import ServerledgeContext

log = structlog.get_logger(__name__)

FLAG: Final = "--http"
_CONTACT_FILE: Final = "contact.json"
# Of the cloud that a node leaves.
MEMBERSHIP_FILES: Final = (REVOKED_TOKENS_FILE, _CONTACT_FILE, "https.key", "https.crt", "https.json")
_MAX_URLS: Final = 8


class NodeSocket(msgspec.Struct, frozen=True):
    """Where it listens, bound before anything else."""

    bound: socket.socket
    host: str  # as it was given
    port: int
    is_exposed: bool  # other machines may reach it

    @property
    def local_url(self) -> str:
        """For programs on this machine."""
        address = addresses.local_dial_address(addresses.display_address(self.bound))
        return f"{'https' if self.is_exposed else 'http'}://{address}"


class NodeAccess(msgspec.Struct, frozen=True):
    """How callers of a node are authenticated without a server."""

    verifier: OfflineTokenVerifier
    contact: ServerContact


class NodeDescription(msgspec.Struct, frozen=True):
    """The node, for those who call it."""

    node: str
    name: str
    joined_name: str  # which servers know it by, and its certificate has
    server: str
    folder: Path  # of its membership
    authority_file: Path
    checks: dict[str, Callable[[], Awaitable[None]]]
    lacking: tuple[str, ...]
    follow_authorities: Callable[[Callable[[AuthorityBundle], None]], None]


class NodeListenerParts(msgspec.Struct, frozen=True):
    """The listener as it runs."""

    urls: tuple[str, ...]  # for other machines
    warnings: tuple[str, ...]
    failed: Callable[[], Awaitable[None]]


def check_settings(settings: NodeSettings) -> None:
    """Raise `Invalid` for settings with which the listener could not serve."""
    if not settings.http:
        return
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise errors.Invalid("node.tls_cert and node.tls_key go together: set both, or none")
    for name in settings.names:
        if edge_names.plain_host(name) is None:
            raise errors.Invalid(f"node.names: {name!r} is no host name and no address", field="node.names")


def bind(context: RoleContext) -> NodeSocket | None:
    """The socket of the setting `node.http`; None if it is empty."""
    listen = context.settings.node.http
    if not listen:
        return None
    host, _ = addresses.split_host_port(listen, FLAG)
    bound = context.undo.enter_context(context.bind(listen, FLAG, HTTP_SOCKET))
    return NodeSocket(bound, host, bound.getsockname()[1], bool(gate.outside_addresses(host)))


async def open_access(
    context: RoleContext,
    folder: Path,
    authority_pem: bytes,
    certificates: CertificateVerifier,
    loops: TaskSupervisor,
) -> NodeAccess:
    """Read what is known of tokens; `folder` is that of the membership."""
    revoked = RevokedTokenList(folder / REVOKED_TOKENS_FILE, context.clock)
    contact = ServerContact(folder / _CONTACT_FILE, context.clock)
    loops.forever("revoked tokens", revoked.run)
    loops.forever("contact", contact.run)
    context.undo.push_async_callback(asyncio.to_thread, contact.save)
    issuers = [pin_of(pki.fingerprint(each)) for each in pki.split_bundle(authority_pem)]
    return NodeAccess(
        OfflineTokenVerifier(issuers, certificates, revoked, contact, context.settings.node.offline_s),
        contact,
    )


async def start(
    context: RoleContext,
    sock: NodeSocket,
    node: NodeDescription,
    access: NodeAccess,
    routes: ServerledgeContext | None,
    request: RequestCertificate,
    loops: TaskSupervisor,
) -> NodeListenerParts:
    """Take requests. `request` gets a certificate of the cloud's CA from a server."""
    from skerry.daemon.node_app import build_node_app  # most nodes have no listener
    from skerry.wire.own.node_info import NodeInfoContext

    settings, clock = context.settings, context.clock
    authority_pem = await asyncio.to_thread(node.authority_file.read_bytes)
    shown = _certificate(context, sock, node, authority_pem, request) if sock.is_exposed else None
    if shown is not None:
        node.follow_authorities(shown.trust)
        await shown.prepare()
        loops.forever("HTTPS certificate", shown.run)

    def names() -> frozenset[str]:
        given = (edge_names.plain_host(name) for name in settings.node.names)
        return frozenset() if shown is None else shown.hosts.union(name for name in given if name)

    def urls() -> tuple[str, ...]:
        return _urls(sock, () if shown is None else shown.hosts)

    def warnings() -> tuple[str, ...]:
        if shown is None:
            return ()
        return (*_exposure_warnings(sock, shown, serves_functions=routes is not None), *shown.warnings)

    access_gate = gate.AccessGate(
        access.verifier, namespace_marker.own_uid(), local_trust=settings.identity.local_trust
    )
    info = NodeInfoContext(
        node=node.node,
        name=node.name,
        server=node.server,
        clock=clock,
        started_at=clock.now(),
        authority_pem=node.authority_file.read_bytes,
        checks={**node.checks, **({} if shown is None else {"certificate": _has_certificate(shown)})},
        urls=urls,
        contact_at=lambda: access.contact.at,
        lacking=node.lacking,
        warnings=warnings,
    )
    http = HttpServer(
        build_node_app(
            settings, clock, LimitedGate(access_gate, clock.monotonic), routes, info, own_names=names
        ),
        settings.http,
        trusted_uids=access_gate.trusted_uids,
        fronts=open_fronts(context, tls=shown is not None),
    )
    context.undo.push_async_callback(http.stop, settings.stop_timeout_s * DRAIN_SHARE)
    await http.start(sock.bound, None if shown is None else shown.context)
    for sentence in warnings():
        log.warning("listener.warning", warning=sentence)
    return NodeListenerParts(urls(), warnings(), http.failed)


def requested_hosts(host: str, name: str, names: Sequence[str], machine: Sequence[str]) -> frozenset[str]:
    """What the certificate of a listener on `host` is requested for; `machine` are the addresses of this
    machine, of which a listener on all of them has those of its family."""
    try:
        listening = ipaddress.ip_address(host)
    except ValueError:
        own: Sequence[str] = (host,)
    else:
        if not listening.is_unspecified:
            own = (host,)
        elif listening.version == 6:
            own = machine
        else:
            own = [each for each in machine if ":" not in each]
    wanted = ("localhost", "127.0.0.1", "::1", *edge_names.own_names(name), *names, *own)
    plain = dict.fromkeys(found for each in wanted if (found := edge_names.plain_host(each)) is not None)
    return frozenset(list(plain)[: edge_names.MAX_HOSTS])


def _certificate(
    context: RoleContext,
    sock: NodeSocket,
    node: NodeDescription,
    authority_pem: bytes,
    request: RequestCertificate,
) -> ListenerCertificate:
    settings = context.settings.node
    if settings.tls_cert:
        return FileListenerCertificate(
            Path(settings.tls_cert), Path(settings.tls_key), authority_pem, context.clock
        )
    return IssuedListenerCertificate(
        node.folder,
        authority_pem,
        lambda: requested_hosts(sock.host, node.joined_name, settings.names, host_identity.read_addresses()),
        request,
        context.clock,
    )


def _urls(sock: NodeSocket, hosts: Sequence[str] | frozenset[str]) -> tuple[str, ...]:
    """Addresses first: they need no name server."""
    others = [host for host in hosts if host not in ("localhost", "127.0.0.1", "::1")]
    ordered = sorted(others, key=lambda host: (not _is_address(host), ":" in host, host))
    return tuple(f"https://{addresses.join_host_port(host, sock.port)}" for host in ordered[:_MAX_URLS])


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _exposure_warnings(
    sock: NodeSocket, shown: ListenerCertificate, *, serves_functions: bool
) -> tuple[str, ...]:
    """Sentences about a listener that need not be so open."""
    found = []
    if not serves_functions:
        found.append(
            f"{FLAG} {addresses.join_host_port(sock.host, sock.port)} can be reached from other machines, "
            "but this node runs no functions; leave it out"
        )
    public = sorted(
        host for host in shown.hosts if _is_address(host) and ipaddress.ip_address(host).is_global
    )
    if public:
        found.append(
            f"the HTTPS listener has the public address {', '.join(public)}: anybody can reach it; listen on "
            "an address of the local network, unless that is meant"
        )
    return tuple(found)


def _has_certificate(shown: ListenerCertificate) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        if not shown.hosts:
            raise errors.Unavailable("the HTTPS listener has no certificate yet")

    return check
