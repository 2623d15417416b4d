"""The market in the store and in memory: decisions are written here, and come back as state and changes.

The state is fed by the watch only, also with our own writes, so there is one order of changes;
a writer waits until its own has come back. Each record is one key: `market/flavor/`, `market/hold/` and
`market/contract/`, with its id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from typing import TypeVar

from skerry.control.events.log import EventLog
from skerry.kit import json_codec
from skerry.market.provider.ledger.changelog import OfferChange, OfferChangeLog
from skerry.market.provider.ledger.decisions import LedgerDecision
from skerry.market.provider.ledger.records import (
    CONTRACT_PREFIX,
    OFFER_PREFIX,
    PREFIX,
    ContractRecord,
    OfferRecord,
    contract_key,
    hold_key,
    offer_key,
)
from skerry.market.provider.ledger.state import WINDOW_S, LedgerState
from skerry.model import errors, ids
from skerry.model.ids import ContractId, HoldId, OfferId
from skerry.model.market import Hold
from skerry.store import fencing
from skerry.store.protocol import ABSENT, MAX_OPS, Delete, Entry, Expect, Op, Store
from skerry.store.tables.table import RecordChange, Table

Id = TypeVar("Id", OfferId, HoldId, ContractId)
LedgerRecord = OfferRecord | Hold | ContractRecord


class LedgerCache:
    """The ledger in memory. `touched` is called with the offers that changed, in the same step."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        changes: OfferChangeLog,
        touched: Callable[[Collection[OfferId]], None],
    ) -> None:
        self.state = LedgerState()
        self._store = store
        self._events = events
        self._changes = changes
        self._touched = touched
        # One table for all kinds: what one transaction writes is seen whole.
        self._table: Table[LedgerRecord] = Table(store, PREFIX, _decode)
        self._table.subscribe(self._moved)

    @property
    def revision(self) -> int:
        """Of the store, up to which the state is read. No flavor has had a version above it: each is a
        commit."""
        return self._table.revision

    async def run(self) -> None:
        """Follow the store for ever."""
        await self._table.run()

    async def ready(self) -> None:
        await self._table.ready()

    async def write(self, flavor: OfferId, decision: LedgerDecision, fences: Collection[Expect] = ()) -> None:
        """Make a decision durable and wait until it is in memory.

        Raises `Conflict` if the flavor is not as it was when this was decided, or the leader of one of the
        `fences` no longer leads.
        """
        assert decision.account is not None  # nothing changes without one
        key = offer_key(flavor)
        records: dict[str, LedgerRecord] = {key: decision.account}
        records |= {hold_key(id): hold for id, hold in decision.holds.items()}
        records |= {contract_key(id): sale for id, sale in decision.sales.items()}
        ops = [self._table.put(name.removeprefix(PREFIX), record) for name, record in records.items()]
        ops += [
            self._events.put(event.kind, event.subject, actor=event.actor, reason=event.reason, **event.data)
            for event in decision.events
        ]
        new = [hold for id, hold in decision.holds.items() if id not in self.state.holds]
        for hold in new:
            self.state.buyers.add_pending(hold)
        try:
            expect = Expect(key, self.state.account_of(flavor).revision or ABSENT)
            await self._table.commit(ops, [expect, *fences])
        finally:
            for hold in new:
                self.state.buyers.forget(hold)

    async def catch_up(self, flavor: OfferId) -> None:
        """Another server has changed this flavor: wait until that is in memory."""
        entry = await self._store.get(offer_key(flavor))
        await self._table.wait_for_revision(
            entry.revision if entry is not None else await self._store.revision()
        )

    async def look_up(self, key: str) -> None:
        """Perhaps another server has just written this: then wait until it is in memory."""
        try:
            ids.check_id(key.rpartition("/")[2])
        except errors.Invalid:
            return  # there cannot be such a thing
        entry = await self._store.get(key)
        if entry is not None:
            await self._table.wait_for_revision(entry.revision)

    async def trim(self, keep: int, now: float, fence: Expect | None = None) -> None:
        """Remove the oldest ended records but `keep` of each kind; such holds and contracts do not change any
        more, and a flavor that is offered again at this moment stays. So do holds of unknown buyers while
        their limits count them."""
        state = self.state

        def is_counted(id: HoldId) -> bool:
            hold = state.holds.get(id)
            return hold is not None and hold.is_unknown and now - hold.created_at < WINDOW_S

        keys = []
        for id in _oldest(state.over_sales, keep):  # first: in pairs, which no transaction parts
            if not is_counted(hold := state.sales[id].contract.hold):
                keys += [contract_key(id), hold_key(hold)]
        keys += [hold_key(id) for id in _oldest(state.over_holds, keep) if not is_counted(id)]
        seen = {offer_key(id): state.account_of(id).revision for id in _oldest(state.over_flavors, keep)}
        keys += seen
        for start in range(0, len(keys), MAX_OPS):
            batch = keys[start : start + MAX_OPS]
            ops: list[Op] = [Delete(key) for key in batch]
            expect = [Expect(key, seen[key]) for key in batch if key in seen]
            try:
                await self._table.wait_for_revision(await fencing.commit(self._store, ops, expect, fence))
            except errors.Conflict:
                return  # the state is about to change, and then it is tried again

    def _moved(self, moved: Sequence[RecordChange[LedgerRecord]]) -> None:
        touched: dict[OfferId, None] = {}
        changed: list[tuple[int, OfferChange]] = []
        is_new = self._table.revision < 0
        for _, before, after in moved:
            was = before.value if before is not None else None
            now = after.value if after is not None else None
            match was or now:
                case OfferRecord():
                    assert not isinstance(was, Hold | ContractRecord)
                    assert not isinstance(now, Hold | ContractRecord)
                    flavor = self.state.put_account(was, now, after.revision if after is not None else 0)
                    # An offer is removed only after it was withdrawn, unless the store was restored from a
                    # backup.
                    is_new = is_new or (now is None and was is not None and was.withdrawn is None)
                    known = None if was is None else was.flavor.version
                    if after is not None and now is not None and now.flavor.version != known:
                        changed.append((after.revision, OfferChange(was, now)))
                case Hold():
                    assert not isinstance(was, OfferRecord | ContractRecord)
                    assert not isinstance(now, OfferRecord | ContractRecord)
                    flavor = self.state.put_hold(was, now)
                case _:
                    assert not isinstance(was, OfferRecord | Hold)
                    assert not isinstance(now, OfferRecord | Hold)
                    flavor = self.state.put_sale(was, now)
            touched[flavor] = None
        if is_new:
            self.state.sort()
            self._changes.start(
                max((after.revision for _, _, after in moved if after is not None), default=0)
            )
        else:
            # After an interruption there are many at once; each has its own position, for subscribers that
            # resume.
            for revision, change in sorted(changed, key=itemgetter(0)):
                self._changes.append(revision, [change])
        self._touched(touched)


def _oldest(over: dict[Id, None], keep: int) -> list[Id]:
    return list(over)[: max(0, len(over) - keep)]


def _decode(entry: Entry) -> LedgerRecord:
    if entry.key.startswith(OFFER_PREFIX):
        return json_codec.decode(entry.value, OfferRecord)
    if entry.key.startswith(CONTRACT_PREFIX):
        return json_codec.decode(entry.value, ContractRecord)
    return json_codec.decode(entry.value, Hold)
