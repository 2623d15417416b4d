"""Buyers at the doors of their contracts: when each was last there, and who has not been for too long.

Kept in the store, one key for each contract whose buyer ever came: with several servers a buyer may be at the
door of any of them. The server that leads looks, and takes contracts back whose buyer is gone. A silence
counts from when that server began to look, at the earliest: buyers cannot come while nobody is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from skerry.kit.tasks import give_up
from skerry.market.ledger import Ledger
from skerry.model import errors
from skerry.model.ids import ContractId
from skerry.store.protocol import MAX_OPS, Delete, Put, Store

log = structlog.get_logger(__name__)

PREFIX: Final = "market-visit/"
_SHARE: Final = (
    4  # of the time for silence: how often a visit that lasts is noted, and absences are looked for
)
_AT_MOST_S: Final = 900.0


class Visits:
    """`run` for ever; of several servers, one `is_leading`."""

    def __init__(
        self, store: Store, ledger: Ledger, *, silence_s: float, is_leading: Callable[[], bool]
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._silence_s = silence_s
        self._is_leading = is_leading
        self._pause_s = min(silence_s / _SHARE, _AT_MOST_S)
        self._looks_since: float | None = None

    @asynccontextmanager
    async def visit(self, id: ContractId) -> AsyncIterator[None]:
        """The buyer of the contract is at its door for as long as the context lasts."""
        noting = asyncio.ensure_future(self._note_for_ever(id))
        try:
            yield
        finally:
            await give_up([noting])
            await self._note(id)

    async def run(self) -> None:
        """Take back the contracts of buyers that are gone."""
        while True:
            if self._is_leading():
                try:
                    await self.look()
                except errors.SkerryError as error:
                    log.warning("visits.not-seen", error=error.message)
            else:
                self._looks_since = None
            await asyncio.sleep(self._pause_s)

    async def look(self) -> None:
        """End what nobody came for, and forget what is over."""
        now = self._ledger.now()
        if self._looks_since is None:
            self._looks_since = now
        over: list[ContractId] = []
        for entry in (await self._store.range(PREFIX)).entries:
            id = ContractId(entry.key.removeprefix(PREFIX))
            if await self._is_over(id):
                over.append(id)
            elif now - max(float(entry.value), self._looks_since) >= self._silence_s:
                reason = f"its buyer was not at its door for {self._silence_s:g} s"
                await self._ledger.reclaim(id, actor="skerry", reason=reason, at_once=True)
                log.info("contract.abandoned", contract=id)
        for start in range(0, len(over), MAX_OPS):
            await self._store.commit([Delete(PREFIX + id) for id in over[start : start + MAX_OPS]])

    async def _is_over(self, id: ContractId) -> bool:
        try:
            return (await self._ledger.find_contract(id)).contract.ended_at is not None
        except errors.NotFound:
            return True

    async def _note_for_ever(self, id: ContractId) -> None:
        while True:
            await self._note(id)
            await asyncio.sleep(self._pause_s)

    async def _note(self, id: ContractId) -> None:
        try:
            await self._store.commit([Put(PREFIX + id, repr(self._ledger.now()).encode())])
        except errors.SkerryError as error:
            log.warning("visit.not-noted", contract=id, error=error.message)
