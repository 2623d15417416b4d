"""The certificates of one server on a store of the test, with routes and edge nodes that are played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from skerry.control.events.log import EventLog
from skerry.control.leadership.election import LeaderElection
from skerry.control.secrets.key_file import SecretKeyFile
from skerry.control.secrets.vault import SecretVault
from skerry.control.tls.account import AcmeAccounts
from skerry.control.tls.acme_api import AcmeConnector
from skerry.control.tls.acme_client import AcmeClients
from skerry.control.tls.controller import TlsController
from skerry.control.tls.deps import TlsDeps
from skerry.control.tls.dns_hook import DnsHook
from skerry.control.tls.edge_certificates import EdgeCertificates
from skerry.control.tls.internal_issuer import InternalIssuer
from skerry.control.tls.orders import OrderRunner
from skerry.control.tls.registry import TlsRegistry
from skerry.control.tls.tables import AccountTable, TlsTable
from skerry.kit.clock import Clock
from skerry.kit.pki import CertificateAuthority
from skerry.kit.tasks import cancel_and_wait
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject
from skerry.model.settings import EventSettings
from skerry.model.tls_certificates import (
    CertificateSource,
    HttpChallenge,
    InternalDomains,
    TlsCertificate,
    WantedDomain,
)
from skerry.model.tls_settings import TlsSettings
from skerry.store.protocol import Store
from tests.support.secrets import MemoryKeyFile
from tests.support.waiting import eventually

EDGE, INNER = NodeId("edge-1"), NodeId("inner-1")
ACME, OWN_CA = CertificateSource.ACME, CertificateSource.OWN_CA


class PlayedRoutes:
    """The routes of a cloud, as far as certificates need them."""

    def __init__(self, *domains: WantedDomain) -> None:
        self.domains = list(domains)
        self.edges = {EDGE}
        self._listeners: list[Callable[[], object]] = []

    def domains_wanted(self) -> Sequence[WantedDomain]:
        return self.domains

    def is_edge(self, node: NodeId) -> bool:
        return node in self.edges

    def listen(self, changed: Callable[[], object]) -> None:
        self._listeners.append(changed)

    def add(
        self, domain: str, source: CertificateSource = ACME, namespace: Namespace = DEFAULT_NAMESPACE
    ) -> None:
        self.domains.append(WantedDomain(domain, namespace, source))
        self.changed()

    def remove(self, domain: str) -> None:
        self.domains = [each for each in self.domains if each.domain != domain]
        self.changed()

    def changed(self) -> None:
        for each in self._listeners:
            each()


@dataclass
class TlsServer:
    """What a server has of certificates."""

    table: TlsTable
    accounts: AccountTable
    registry: TlsRegistry
    edge: EdgeCertificates
    controller: TlsController
    vault: SecretVault
    events: EventLog
    leader: LeaderElection
    routes: PlayedRoutes
    lead: asyncio.Task[None] | None = field(default=None)

    def value(self, name: str, namespace: Namespace = DEFAULT_NAMESPACE) -> TlsCertificate | None:
        record = self.table.by_name(name, namespace)
        return None if record is None else record.value

    async def ready(
        self, name: str, namespace: Namespace = DEFAULT_NAMESPACE, version: int = 1
    ) -> TlsCertificate:
        """The certificate of that name once it has this version, and nothing is left to do about it."""

        def found() -> TlsCertificate | None:
            one = self.value(name, namespace)
            return one if one is not None and one.version >= version and one.order is None else None

        return await eventually(found)


@asynccontextmanager
async def tls_server(
    store: Store,
    clock: Clock,
    settings: TlsSettings,
    *,
    authority: CertificateAuthority,
    routes: PlayedRoutes | None = None,
    connector: AcmeConnector | None = None,
    keys: SecretKeyFile | None = None,
    hook: DnsHook | None = None,
    name: str = "one",
    leads: bool = True,
    is_alone: bool = False,
) -> AsyncIterator[TlsServer]:
    """Servers of one store need the same `keys`. One that `is_alone` follows a dead one at once."""
    events = EventLog(store, clock, EventSettings())
    vault = SecretVault(store, keys or MemoryKeyFile(), clock)
    await vault.open()
    routes = routes or PlayedRoutes()
    table, accounts = TlsTable(store), AccountTable(store)
    internal = InternalDomains(more=settings.internal_domains)
    deps = TlsDeps(table, vault, events, clock, settings, internal)
    account = AcmeAccounts(accounts, vault, clock, settings, connector or AcmeClients(settings, clock))
    controller = TlsController(
        deps,
        accounts,
        routes,
        account,
        orders=OrderRunner(deps, account, hook=hook),
        internal=InternalIssuer(deps, authority),
    )
    leader = LeaderElection(store, events, clock, name=name, lease_s=2, is_alone=is_alone)
    edge = EdgeCertificates(table, routes, clock, nodes=lambda: [EDGE, INNER])
    registry = TlsRegistry(deps, routes)
    tasks = [asyncio.create_task(table.run()), asyncio.create_task(accounts.run())]
    server = TlsServer(table, accounts, registry, edge, controller, vault, events, leader, routes)
    try:
        await table.ready()
        await accounts.ready()
        if leads:
            tasks.append(asyncio.create_task(leader.run()))
            server.lead = asyncio.create_task(controller.run(leader))
            tasks.append(server.lead)
        yield server
    finally:
        await cancel_and_wait(tasks)


@asynccontextmanager
async def played_edge(server: TlsServer, port: int) -> AsyncIterator[list[str]]:
    """An edge node that serves challenges on a port of loopback; gives the paths that were requested."""
    known: dict[NetworkKey, NetworkObject] = {each.network_key: each for each in server.edge.objects(EDGE)}
    requested: list[str] = []

    def changed(node: NodeId | None, key: NetworkKey, value: NetworkObject | None) -> None:
        if node != EDGE:
            return
        if value is None:
            known.pop(key, None)
        else:
            known[key] = value

    server.edge.listen(changed)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        requested.append(path)
        answer = known.get(NetworkKey(HttpChallenge.kind, path.removeprefix("/.well-known/acme-challenge/")))
        body = answer.authorization.encode() if isinstance(answer, HttpChallenge) else b""
        status = b"200 OK" if body else b"404 Not Found"
        writer.write(
            b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)
        )
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", port):
        yield requested
