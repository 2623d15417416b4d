"""Heartbeats of buyers: when each was last connected to the tunnel of its contract.

Stored, one key for each contract whose buyer ever connected: with several servers a buyer may connect to any
of them. The leader reclaims contracts whose buyer has been disconnected for too long, or has not signed or
opened them in time (`skerry.market.provider.ledger.activation_rules`). All of these times count from the
start of the leader's loop, at the earliest: buyers cannot connect without a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from skerry.kit.tasks import cancel_and_wait
from skerry.market.provider.ledger import activation_rules
from skerry.market.provider.ledger.ledger import Ledger
from skerry.model import errors
from skerry.model.ids import ContractId
from skerry.model.market_settings import MarketSettings
from skerry.store import fencing
from skerry.store.protocol import MAX_OPS, Delete, Expect, Put, Store

log = structlog.get_logger(__name__)

PREFIX: Final = "market-visit/"
# Share of the allowed time: how often a connection is recorded, and overdue contracts are checked.
_SHARE: Final = 4
_AT_MOST_S: Final = 900.0
_CHECKED_AT_ONCE: Final = 512  # contracts, before others have their turn


class BuyerHeartbeats:
    """`run` while this server leads."""

    def __init__(self, store: Store, ledger: Ledger, settings: MarketSettings) -> None:
        self._store = store
        self._ledger = ledger
        self._settings = settings
        self._silence_s = settings.buyer_silence_s
        self._note_s = min(self._silence_s / _SHARE, _AT_MOST_S)
        self._checks_since: float | None = None
        self._check_s = min(self._note_s, settings.sign_s / _SHARE, settings.open_s / _SHARE)

    @asynccontextmanager
    async def connected(self, id: ContractId) -> AsyncIterator[None]:
        """The buyer of the contract is connected to its tunnel for as long as the context lasts."""
        noting = asyncio.ensure_future(self._note_for_ever(id))
        try:
            yield
        finally:
            await cancel_and_wait([noting])
            await self._note(id)

    async def mark_connected(self, id: ContractId) -> None:
        """The buyer of the contract has connected, whether or not its cell is ready: it was opened in
        time."""
        if (await self._ledger.find_contract(id)).opened_at is None:
            await self._note(id)  # from now on its absence counts
            await self._ledger.mark_opened(id)

    async def run(self, fence: Expect) -> None:
        """Reclaim the contracts of absent buyers."""
        self._checks_since = None
        while True:
            try:
                await self.check(fence)
            except errors.SkerryError as error:
                log.warning("visits.not_seen", error=error.message)
            await asyncio.sleep(self._check_s)

    async def check(self, fence: Expect | None = None) -> None:
        """End contracts that were not opened, and remove records of ended ones."""
        now = self._ledger.now()
        if self._checks_since is None:
            self._checks_since = now
        since = self._checks_since
        await self._end_unused(since, fence)
        over: list[ContractId] = []
        for entry in (await self._store.range(PREFIX)).entries:
            id = ContractId(entry.key.removeprefix(PREFIX))
            if await self._is_over(id):
                over.append(id)
            elif now - max(float(entry.value), since) >= self._silence_s:
                reason = f"its buyer was not connected for {self._silence_s:g} s"
                await self._ledger.reclaim(id, actor="skerry", reason=reason, at_once=True, fence=fence)
                log.info("contract.abandoned", contract=id)
        for start in range(0, len(over), MAX_OPS):
            ops = [Delete(PREFIX + id) for id in over[start : start + MAX_OPS]]
            await fencing.commit(self._store, ops, fence=fence)

    async def _end_unused(self, since: float, fence: Expect | None) -> None:
        for number, sale in enumerate(self._ledger.live_sales(), start=1):
            if (
                activation_rules.early_termination(sale, self._settings, since=since, now=self._ledger.now())
                is not None
            ):
                after = (await self._ledger.end_unused(sale.contract.id, since=since, fence=fence)).contract
                log.info("contract.unused", contract=after.id, reason=after.reason)
            elif number % _CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _is_over(self, id: ContractId) -> bool:
        try:
            return (await self._ledger.find_contract(id)).contract.ended_at is not None
        except errors.NotFound:
            return True

    async def _note_for_ever(self, id: ContractId) -> None:
        while True:
            await self._note(id)
            await asyncio.sleep(self._note_s)

    async def _note(self, id: ContractId) -> None:
        try:
            await self._store.commit([Put(PREFIX + id, repr(self._ledger.now()).encode())])
        except errors.SkerryError as error:
            log.warning("visit.not_noted", contract=id, error=error.message)
