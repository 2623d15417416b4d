"""Alerts of this process: their rules, requests about them, and what the leader evaluates.

Called by `skerry.daemon.server_role`. Every server serves all of it; one of them leads.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import msgspec

from skerry.control.alerts.controller import AlertController, AlertDeps, AlertMetrics
from skerry.control.alerts.delivery import AlertSender
from skerry.control.alerts.observations import (
    AlertSources,
    BoughtContract,
    ObservedNode,
    ObservedService,
    ServerDisk,
)
from skerry.control.alerts.registry import AlertRegistry
from skerry.control.alerts.tables import AlertTables
from skerry.control.secrets.vault import SecretVault
from skerry.control.telemetry.service_metrics import ReadyCopies
from skerry.daemon.control_plane import ControlPlaneParts
from skerry.daemon.market import MarketParts
from skerry.daemon.server_base import ServerBase
from skerry.daemon.telemetry import certificates, export
from skerry.market.buyer.quotes import BorrowedContractState
from skerry.market.metrics import per_hour
from skerry.model import errors
from skerry.model.secrets import SecretKind
from skerry.wire.own.alerts.endpoints import AlertContext


class _Sources(msgspec.Struct, frozen=True):
    """What is observed, read from the parts of a server."""

    base: ServerBase
    fleet: ControlPlaneParts
    trade: MarketParts
    ready: ReadyCopies
    last_backup: Callable[[], float] | None

    def nodes(self) -> Iterator[ObservedNode]:
        for node in self.fleet.nodes.list():
            yield ObservedNode(node, self.fleet.nodes.liveness(node.id))

    def services(self) -> Iterator[ObservedService]:
        counts = self.ready.counts()
        for service in self.fleet.services.context.services.tables.services.values():
            yield ObservedService(service, counts[service.id])

    def disk(self) -> ServerDisk:
        return ServerDisk(socket.gethostname(), self.base.disk.free_share)

    def contracts(self) -> Iterator[BoughtContract]:
        for one in self.trade.context.buyer.borrowed():
            if one.state is not BorrowedContractState.ENDED:
                price = one.price
                yield BoughtContract(one.id, one.peer, one.due_at, price.currency, per_hour(price))

    def all(self) -> AlertSources:
        instances, jobs = self.fleet.instance_table, self.fleet.jobs.tables[0]
        return AlertSources(
            self.nodes,
            self.services,
            instances.values,
            jobs.values,
            lambda: certificates(self.base, self.fleet),
            self.disk,
            self.contracts,
            self.last_backup,
        )


async def start(
    base: ServerBase,
    fleet: ControlPlaneParts,
    trade: MarketParts,
    vault: SecretVault,
    last_backup: Callable[[], float] | None,
) -> AlertContext:
    """Evaluate rules from now on, while this server leads. The tables of all others must be ready.
    `last_backup` is None if none are scheduled."""
    settings = base.settings.alerts
    tables = AlertTables.of(base.store)
    base.loops.forever("alerts", tables.rules.run, critical=True)
    base.loops.forever("alert states", tables.states.run, critical=True)

    async def password(name: str) -> str:
        record = fleet.secrets.secrets.tables[SecretKind.SECRET].by_name(name)
        if record is None:
            raise errors.FailedPrecondition(
                f"there is no secret {name!r} in the namespace default, which is named by the setting "
                "alerts.smtp_password_secret"
            )
        return (await vault.value(record.value.ref())).decode().strip()

    ready = ReadyCopies(fleet.instance_table, fleet.nodes)
    base.undo.callback(ready.close)
    sources = _Sources(base, fleet, trade, ready, last_backup).all()
    sender = AlertSender(settings, server=socket.gethostname(), password=password)
    url = base.addresses.url
    deps = AlertDeps(tables, vault, base.events, base.clock, sender, sources)
    controller = AlertController(deps, url=url, interval_s=settings.interval_s, settled=base.history.settled)
    await base.loops.unless_failed(tables.rules.ready())
    await base.loops.unless_failed(tables.states.ready())
    base.loops.forever("alerts.controller", lambda: controller.run(fleet.leader))
    export(base, AlertMetrics(tables))
    return AlertContext(AlertRegistry(tables, vault, base.events, base.clock, sender, sources, url=url))
