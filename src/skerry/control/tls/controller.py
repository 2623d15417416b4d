"""The controller of certificates: on the leader, it does what `decisions` decides.

A pass is made when a certificate, an account or the wanted domains change, and when a time comes. About one
certificate one thing is done at a time, beside the passes. Every write is under the leader's fence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog
from msgspec.structs import replace

from skerry.control.controller_loop import PassLoop, settled_at_once
from skerry.control.leadership.election import LeaderElection
from skerry.control.tls import decisions
from skerry.control.tls.account import AcmeAccounts
from skerry.control.tls.decisions import (
    Action,
    ChangeSource,
    ContinueOrder,
    Create,
    IssueInternal,
    OrderLimits,
    PlaceOrder,
    Remove,
)
from skerry.control.tls.deps import TlsDeps
from skerry.control.tls.internal_issuer import InternalIssuer
from skerry.control.tls.orders import ACTOR, OrderRunner
from skerry.control.tls.registry import MAX_CERTIFICATES, acme_problem
from skerry.control.tls.tables import AccountTable
from skerry.kit import ulid
from skerry.model import errors
from skerry.model.tls_certificates import (
    CertificateSource,
    TlsCertificate,
    WantedDomains,
    name_of,
)
from skerry.store.protocol import Expect
from skerry.store.tables.table import Write

log = structlog.get_logger(__name__)

_FAILED_PAUSE_S: Final = 5.0


class TlsController:
    """Gets, renews and removes the certificates of one cloud."""

    def __init__(
        self,
        deps: TlsDeps,
        accounts: AccountTable,
        wanted: WantedDomains,
        account: AcmeAccounts,
        *,
        orders: OrderRunner,
        internal: InternalIssuer,
        settled: Callable[[], Awaitable[None]] = settled_at_once,
    ) -> None:
        self._table, _, self._events, self._clock, self._settings, self._internal_domains = deps
        self._accounts = accounts
        self._wanted = wanted
        self._account = account
        self._orders = orders
        self._internal = internal
        self._settled = settled
        self._running: set[str] = set()
        self._passes = PassLoop(deps.clock, settled=settled)
        deps.table.subscribe(lambda _: self._passes.wake())
        accounts.subscribe(lambda _: self._passes.wake())
        wanted.listen(self._passes.wake)

    async def run(self, leader: LeaderElection) -> None:
        """For ever: work while `leader` leads. The tables must be running."""
        await self._table.ready()
        await self._accounts.ready()
        await leader.run_while_leading("tls", self.lead)

    async def lead(self, fence: Expect) -> None:
        """Work for ever, as the leader."""
        await asyncio.gather(self._table.sync(), self._accounts.sync())
        await self._settled()
        self._running.clear()
        try:
            await self._passes.run(partial(self._pass, fence))
        finally:
            self._account.close()

    async def _pass(self, fence: Expect) -> float | None:
        plan = decisions.decide(
            self._table.values(),
            self._wanted.domains_wanted(),
            self._clock.now(),
            OrderLimits(
                can_order=not acme_problem(self._settings),
                held_until=self._account.held_until,
                internal_domains=self._internal_domains,
            ),
            self._running,
        )
        for action in plan.actions:
            self._running.add(action.key)
            await self._passes.start(partial(self._act, action, fence))
        return plan.again_at

    async def _act(self, action: Action, fence: Expect) -> None:
        try:
            await self._carry_out(action, fence)
        except errors.Conflict:
            await self._table.sync()  # it was decided on what is outdated
        except errors.SkerryError as error:
            log.warning("tls.not_done", key=action.key, action=type(action).__name__, error=error.message)
            await asyncio.sleep(_FAILED_PAUSE_S)
        finally:
            self._running.discard(action.key)

    async def _carry_out(self, action: Action, fence: Expect) -> None:
        match action:
            case Create():
                await self._create(action, fence)
            case ChangeSource(key, source):
                await self._table.update(
                    key,
                    lambda record: _with_source(record.value, source),
                    missing=errors.NotFound(f"there is no certificate {key} any more"),
                    fence=fence,
                )
            case PlaceOrder(key):
                await self._orders.place(key, fence)
            case ContinueOrder(key):
                await self._orders.resume(key, fence)
            case IssueInternal(key):
                await self._internal.issue(key, fence)
            case Remove(key):
                await self._orders.remove(key, fence)

    async def _create(self, action: Create, fence: Expect) -> None:
        self._table.check_limit(action.namespace, MAX_CERTIFICATES)
        now = self._clock.now()
        certificate = TlsCertificate(
            ulid.new_id(now), name_of(action.domain), now, action.source, (action.domain,), action.namespace
        )
        event = self._table.event(self._events, "requested", certificate, actor=ACTOR, reason="for a route")
        await self._table.commit(
            [self._table.put(action.key, certificate), event],
            [self._table.expect(action.key, None)],
            fence,
        )


def _with_source(certificate: TlsCertificate, source: CertificateSource) -> Write[TlsCertificate] | None:
    if certificate.source is source or not certificate.is_automatic:
        return None
    return Write(replace(certificate, source=source, renew_at=0.0, retry_at=0.0, attempts=0, error=""))
