"""TLS certificates of this process: their records, requests about them, and what the leader orders.

Called by `skerry.daemon.control_plane`. Every server serves all of it; one of them leads.
"""

from __future__ import annotations

import msgspec

from skerry.control.leadership.election import LeaderElection
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.tls.account import AcmeAccounts
from skerry.control.tls.acme_client import AcmeClients
from skerry.control.tls.controller import TlsController
from skerry.control.tls.deps import TlsDeps
from skerry.control.tls.edge_certificates import EdgeCertificates
from skerry.control.tls.internal_issuer import InternalIssuer
from skerry.control.tls.orders import OrderRunner
from skerry.control.tls.registry import TlsRegistry
from skerry.control.tls.tables import AccountTable, TlsTable
from skerry.daemon.secrets import SecretParts
from skerry.daemon.server_base import ServerBase
from skerry.model.settings import Settings
from skerry.model.tls_certificates import InternalDomains, WantedDomains
from skerry.wire.own.tls.context import TlsContext


class TlsParts(msgspec.Struct, frozen=True):
    """Certificates as they are served."""

    context: TlsContext
    table: TlsTable
    edge: EdgeCertificates  # a source of network objects
    _accounts: AccountTable
    _base: ServerBase
    _controller: TlsController

    async def ready(self) -> None:
        """When what is in the store is known."""
        await self.table.ready()
        await self._accounts.ready()

    def lead(self, leader: LeaderElection) -> None:
        """Begin to order certificates, while this server leads."""
        self._base.loops.forever("tls.controller", lambda: self._controller.run(leader))


def internal_domains(settings: Settings) -> InternalDomains:
    return InternalDomains(settings.network.domain, settings.tls.internal_domains)


def start(base: ServerBase, nodes: NodeRegistry, secrets: SecretParts, wanted: WantedDomains) -> TlsParts:
    """Begin to read what is in the store. `wanted` is what the routes need."""
    store, events, clock, settings = base.store, base.events, base.clock, base.settings.tls
    table, accounts = TlsTable(store), AccountTable(store)
    deps = TlsDeps(table, secrets.vault, events, clock, settings, internal_domains(base.settings))
    account = AcmeAccounts(accounts, secrets.vault, clock, settings, AcmeClients(settings, clock))
    controller = TlsController(
        deps,
        accounts,
        wanted,
        account,
        orders=OrderRunner(deps, account),
        internal=InternalIssuer(deps, base.authority),
        settled=base.history.settled,
    )
    edge = EdgeCertificates(table, wanted, clock, nodes=lambda: [node.id for node in nodes.list()])
    base.loops.forever("tls", table.run, critical=True)
    base.loops.forever("acme accounts", accounts.run, critical=True)
    registry = TlsRegistry(deps, wanted)
    return TlsParts(TlsContext(registry), table, edge, accounts, base, controller)
