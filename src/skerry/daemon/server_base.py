"""What all parts of a server rest on: its sockets and addresses, the store, and what is known of callers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from skerry.control.backup import record_import
from skerry.control.events.log import EventLog
from skerry.control.identity import authority_rotation, server_certificates
from skerry.control.identity.authenticator import Authenticator
from skerry.control.identity.authority_rotation import AuthorityRotation
from skerry.control.identity.server_certificates import ServerCertificates
from skerry.control.namespaces.admission import AdmissionStore
from skerry.control.recovery.store_history import StoreHistory
from skerry.daemon.functions import bind_member_socket, store_member_port
from skerry.daemon.role_parts import (
    GRPC_SOCKET,
    HTTP_SOCKET,
    REVOKED_FILE,
    REVOKED_TOKENS_FILE,
    RoleContext,
    node_id,
    takes_writes,
    watch_disk,
)
from skerry.kit import namespace_marker, renewal
from skerry.kit.disk_monitor import DiskMonitor
from skerry.kit.pki import CertificateAuthority
from skerry.kit.tasks import TaskSupervisor
from skerry.market import plain
from skerry.model.ids import NodeId
from skerry.model.settings import Settings
from skerry.node.agent.revocations import RevocationList
from skerry.node.agent.revoked_tokens import RevokedTokenList
from skerry.store import data_stamp, stamp
from skerry.store.factory import open_store
from skerry.store.sqlite.store import SqliteStore
from skerry.transport import addresses, host_identity
from skerry.transport.access import gate
from skerry.transport.grpc import health
from skerry.transport.host_identity import HostIdentity

_ADDRESSES_S = 15.0  # how often the addresses of this machine are checked
_HISTORY_FILE = "history.json"  # in the data folder of a server


class ServerSockets(msgspec.Struct, frozen=True):
    """What a server listens on."""

    http: socket.socket
    grpc: socket.socket
    members: socket.socket | None  # calls of functions by other members
    plain: socket.socket | None  # buyers without credentials
    unix: Path  # gRPC, for this machine alone


class ServerAddresses(msgspec.Struct, frozen=True):
    """Where a server is reached."""

    settings: Settings
    machine: Callable[[], HostIdentity]
    http: str
    grpc: str

    @property
    def scheme(self) -> str:
        return "https" if self.settings.http.tls else "http"

    @property
    def url(self) -> str:
        """The best one for people."""
        return self.urls()[0]

    def urls(self) -> list[str]:
        """For people, the best first."""
        found = addresses.advertised_addresses(self.http, self.settings, self.machine())
        return [f"{self.scheme}://{each}" for each in found]

    def for_nodes(self) -> str:
        """HOST:PORT that nodes dial."""
        return addresses.advertised_addresses(self.grpc, self.settings, self.machine())[0]


@dataclass(frozen=True, slots=True)
class ServerBase(RoleContext):
    """Handed to every step of starting a server."""

    sockets: ServerSockets
    addresses: ServerAddresses
    authority: CertificateAuthority
    store: AdmissionStore
    is_alone: bool  # no other server can use this store
    loops: TaskSupervisor
    events: EventLog
    identity: Authenticator
    history: StoreHistory
    rotation: AuthorityRotation
    node: NodeId  # of this machine
    certificates: ServerCertificates
    gate: gate.AccessGate
    disk: DiskMonitor
    checks: dict[str, health.ReadinessCheck]


def bind_sockets(context: RoleContext) -> ServerSockets:
    settings, undo = context.settings, context.undo
    http_host, _ = addresses.split_host_port(settings.http.listen, "--http")
    gate.check_exposure(http_host, tls=settings.http.tls)
    http = undo.enter_context(context.bind(settings.http.listen, "--http", HTTP_SOCKET))
    grpc = undo.enter_context(context.bind(addresses.grpc_listen(settings), "--grpc", GRPC_SOCKET))
    members = bind_member_socket(context, grpc.getsockname()[0])
    unencrypted = None
    if settings.market.plain_listen:
        plain.networks_of(settings.market)  # `Invalid` if no networks are configured
        unencrypted = undo.enter_context(addresses.bind(settings.market.plain_listen, "market.plain_listen"))
    unix = addresses.unix_socket(settings.grpc.socket, context.folder)
    return ServerSockets(http, grpc, members, unencrypted, unix)


async def open_base(context: RoleContext, sockets: ServerSockets) -> ServerBase:
    """Open the store and the authenticator; from here on callers can be authenticated."""
    settings, folder, clock, undo = context.settings, context.folder, context.clock, context.undo
    backend = await open_store(settings.store, folder, clock)
    store = AdmissionStore(backend)
    undo.push_async_callback(store.close)
    # Before anything is written, also to the folder. One that is incomplete may have no stamp yet.
    await record_import.check_complete(store)
    await stamp.check(backend)
    if not (folder / "pki").exists():  # what is made in a new folder must not seem to be of an old version
        await asyncio.to_thread(data_stamp.write, folder)
    authority = server_certificates.open_authority(folder, clock)
    await authority_rotation.check_root(store, authority, folder / "pki")
    # The process before, of an earlier version, cannot continue from here on.
    await stamp.write(backend)
    await asyncio.to_thread(data_stamp.write, folder)
    store_member_port(context, sockets.members)
    # Its file is locked while it is open; etcd may have other clients.
    is_alone = isinstance(backend, SqliteStore)
    # Entered after the store, so that it is left before it: loops must not outlive what they use.
    loops = await undo.enter_async_context(TaskSupervisor("server", clock=clock))
    events = EventLog(store, clock, settings.events, secret=authority.derive(b"skerry event positions"))
    identity = Authenticator(store, events, authority, clock, settings.identity)
    node = NodeId(await asyncio.to_thread(node_id, folder, clock))
    rotation = AuthorityRotation(store, events, authority, clock, folder / "pki", node=node)
    await rotation.catch_up()
    identity.use_rotation(rotation)
    loops.forever("identity", identity.run, critical=True)
    await loops.unless_failed(identity.ready())
    # Before anything else is written: the revision at the start of this run marks a restored store.
    history = StoreHistory(
        store,
        events,
        clock,
        folder / _HISTORY_FILE,
        server=node,
        is_alone=is_alone,
        settle_s=settings.fleet.lost_after_s,
    )
    await history.begin()
    loops.forever("history", history.run)
    undo.push_async_callback(history.save_revision)
    loops.forever("events", events.run)
    at_start = await asyncio.to_thread(host_identity.resolve)
    revoked = RevocationList(folder / "pki" / REVOKED_FILE, clock)
    await identity.import_revoked(revoked.all, actor="skerry")
    # Outside of the store, too, which may be restored from a backup.
    loops.forever("revocations", lambda: revoked.follow(identity.revoked, identity.listen))
    revoked_tokens = RevokedTokenList(folder / "pki" / REVOKED_TOKENS_FILE, clock)
    await identity.import_revoked_tokens(revoked_tokens.all)
    revoked_tokens.add(identity.offline_feed.revoked())
    identity.offline_feed.listen(lambda *_: revoked_tokens.add(identity.offline_feed.revoked()))
    loops.forever("revoked tokens", revoked_tokens.run)

    def machine() -> HostIdentity:
        return msgspec.structs.replace(at_start, addresses=host_identity.read_addresses())

    certificates = ServerCertificates(
        folder,
        identity,
        authority,
        clock,
        names=lambda: addresses.server_names(settings, machine()),
        node=node,
        # What only this machine can reach does not name its addresses.
        check_every_s=_ADDRESSES_S if addresses.is_exposed(settings) else renewal.LOOK_AGAIN_S,
    )
    loops.forever("ca rotation", rotation.run, critical=True)
    rotation.refresh = certificates.prepare
    await loops.unless_failed(rotation.ready())  # with it, certificates are prepared
    loops.forever("credentials", certificates.run)
    disk = await watch_disk(folder, loops)
    return ServerBase(
        settings=settings,
        folder=folder,
        clock=clock,
        undo=undo,
        log_sources=context.log_sources,
        removed_logs=context.removed_logs,
        manager=context.manager,
        enforcement=context.enforcement,
        sockets=sockets,
        addresses=ServerAddresses(
            settings,
            machine,
            addresses.display_address(sockets.http),
            addresses.display_address(sockets.grpc),
        ),
        authority=authority,
        store=store,
        is_alone=is_alone,
        loops=loops,
        events=events,
        identity=identity,
        history=history,
        rotation=rotation,
        node=node,
        certificates=certificates,
        gate=gate.AccessGate(identity, namespace_marker.own_uid(), local_trust=settings.identity.local_trust),
        disk=disk,
        checks={"store": store.check_writes, "disk": takes_writes(disk)},
    )
