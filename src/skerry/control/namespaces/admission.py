"""Admission: the store of a server, which refuses transactions that exceed the quota of a namespace.

Every transaction of a server passes `AdmissionStore.commit`, so that no request and no controller avoids it.
One that makes a namespace use more expects the record of the namespace as it is known here. If that has a
quota, it also writes one key per kind of object (`quota-use/KIND/NAMESPACE`), and expects those keys at the
revisions up to which the tables here were read when it was checked. So of two servers, or of two requests,
that check on the same state, one is refused by the store and checks again; and nothing is counted that could
differ from the records. Transactions that use less, or nothing more, are passed on as they are. What exists
already, such as an instance that a node claims after a restore of the store, is counted and not refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from skerry.control.namespaces.quotas import NamespaceQuotas, quota_exceeded
from skerry.control.namespaces.usage import CountedUse
from skerry.kit import metrics
from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.namespaces import NO_QUOTA, NOTHING, QuotaAmounts
from skerry.store import commit_metrics
from skerry.store.protocol import ABSENT, Delete, Entry, Expect, LeaseId, Op, Put, RangePage, Store, Watch
from skerry.store.tables.table import Record, Table

T = TypeVar("T")

_KEYS = "quota-use/"
REFUSED = metrics.counter("skerry_quota_refusals_total", "Transactions above the quota of their namespace")


class _CountedTable(msgspec.Struct, frozen=True):
    """A table whose records count towards quotas."""

    kind: str
    table: Table[Any]
    use: Callable[[Any], CountedUse]
    is_exempt: Callable[[Any], bool]
    has_same: Callable[[Any, Any], bool]


@dataclass(slots=True)
class _Growth:
    """What a transaction adds to one namespace."""

    net: QuotaAmounts = NOTHING
    is_refusable: bool = False


class AdmissionStore(Store):
    """A store behind the quotas of namespaces."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.quotas = NamespaceQuotas(store)
        self._counted: dict[str, _CountedTable] = {}
        self._locks: dict[Namespace, asyncio.Lock] = {}
        self._read_up_to: dict[str, int] = {}  # revisions of `quota-use` keys, as far as known
        self._synced_at: dict[Namespace, int] = {}  # the record up to whose revision the tables were read

    def count(
        self,
        table: Table[T],
        use: Callable[[T], CountedUse],
        is_exempt: Callable[[T], bool] = lambda _: False,
        has_same: Callable[[T, T], bool] = lambda before, after: False,
    ) -> None:
        """Count the records of `table`, which must be run, from now on; exempt ones are not refused when
        they are written as such for the first time.
        `has_same` is True if it is plain that two records use the same."""
        kind = table.prefix.removesuffix("/")
        self._counted[kind] = _CountedTable(kind, table, use, is_exempt, has_same)
        table.listen(self.quotas.usage.listener(use, has_same))

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        """As `Store.commit`; raises `QuotaExceeded` if a namespace would use more than its quota."""
        with commit_metrics.measured():
            return await self._commit(ops, expect)

    async def _commit(self, ops: Sequence[Op], expect: Sequence[Expect]) -> int:
        expected = {each.key: each.revision for each in expect}
        growth = self._growth(ops, expected)
        while growth is None or growth:
            if growth is None:
                if not await self._catch_up(ops, expected):
                    break  # it conflicts, which the store says better
                growth = self._growth(ops, expected)
                continue
            revision = await self._commit_growth(ops, expect, growth)
            if revision is not None:
                return revision
            growth = self._growth(ops, expected)
        return await self._store.commit(ops, expect)

    async def _commit_growth(
        self, ops: Sequence[Op], expect: Sequence[Expect], growth: Mapping[Namespace, _Growth]
    ) -> int | None:
        """Commit what adds to these namespaces; None: what is known here was outdated, and is not any
        more."""
        table = self.quotas.table
        guards = [table.expect(name, table.get(name)) for name in growth]
        limited = sorted(name for name in growth if self.quotas.quota(name) is not NO_QUOTA)
        if not limited:
            return await self._try(ops, [*expect, *guards], guards)
        async with AsyncExitStack() as stack:
            for name in limited:
                await stack.enter_async_context(self._locks.setdefault(name, asyncio.Lock()))
            if [table.expect(name, table.get(name)) for name in growth] != guards:
                return None
            for name in limited:
                guards += await self._read_tables(name)
            expected = {each.key: each.revision for each in expect}
            now = self._growth(ops, expected)  # others may have changed while we waited
            if now is None or now.keys() != growth.keys():
                return None
            for name in limited:
                self._check(name, now[name])
            kinds = {kind for op in ops if (kind := op.key.partition("/")[0]) in self._counted}
            keys = [_key(kind, name) for kind in sorted(kinds) for name in limited]
            return await self._try([*ops, *(Put(key, b"") for key in keys)], [*expect, *guards], guards, keys)

    async def _try(
        self,
        ops: Sequence[Op],
        expect: Sequence[Expect],
        guards: Sequence[Expect],
        keys: Collection[str] = (),
    ) -> int | None:
        """Commit; None if one of `guards` did not hold, after reading what is so now."""
        try:
            revision = await self._store.commit(ops, expect)
        except errors.Conflict:
            if not await self._refresh(guards):
                raise
            return None
        except BaseException:
            for key in keys:  # it may have been written all the same
                self._read_up_to.pop(key, None)
            raise
        for key in keys:
            self._read_up_to[key] = revision
        return revision

    async def _refresh(self, guards: Sequence[Expect]) -> bool:
        """Read what `guards` are about; True if one of them does not hold."""
        is_outdated = False
        for guard in guards:
            entry = await self._store.get(guard.key)
            if (ABSENT if entry is None else entry.revision) == guard.revision:
                continue
            is_outdated = True
            if guard.key.startswith(self.quotas.table.prefix):
                await self.quotas.table.sync()
            else:
                self._read_up_to.pop(guard.key, None)
        return is_outdated

    async def _read_tables(self, namespace: Namespace) -> list[Expect]:
        """Wait until the tables include all that was admitted to the namespace; the expectation that
        nothing was since."""
        record = self.quotas.table.get(namespace)
        changed_at = 0 if record is None else record.revision
        if self._synced_at.get(namespace, -1) < changed_at:
            # What was written before there was a quota wrote no key.
            for counted in self._counted.values():
                await counted.table.wait_for_revision(changed_at)
            self._synced_at[namespace] = changed_at
        guards = []
        for counted in self._counted.values():
            key = _key(counted.kind, namespace)
            if key not in self._read_up_to:
                entry = await self._store.get(key)
                self._read_up_to[key] = ABSENT if entry is None else entry.revision
            revision = self._read_up_to[key]
            # The transaction of that revision wrote a record of the table, too.
            await counted.table.wait_for_change(revision)
            guards.append(Expect(key, revision))
        return guards

    def _check(self, namespace: Namespace, growth: _Growth) -> None:
        if not growth.is_refusable:
            return
        if message := self.quotas.refusal(namespace, growth.net):
            REFUSED.inc()
            raise quota_exceeded(namespace, message)

    def _growth(self, ops: Sequence[Op], expected: Mapping[str, int]) -> dict[Namespace, _Growth] | None:
        """What the transaction adds to namespaces, those that grow alone; None if a record that it expects is
        not known here."""
        found: dict[Namespace, _Growth] = {}
        for op in ops:
            kind, _, id = op.key.partition("/")
            counted = self._counted.get(kind)
            if counted is None:
                continue
            before = self._expected_record(counted.table, id, expected.get(op.key))
            if before is _UNKNOWN:
                return None
            after = None if isinstance(op, Delete) else counted.table.value_of(op)
            self._add(found, counted, before, after)
        return {name: growth for name, growth in found.items() if growth.net.grows}

    @staticmethod
    def _add(
        found: dict[Namespace, _Growth], counted: _CountedTable, before: Record[Any] | None, after: Any
    ) -> None:
        if before is not None and after is not None and counted.has_same(before.value, after):
            return
        was = None if before is None else counted.use(before.value)
        now = None if after is None else counted.use(after)
        if was == now:
            return
        if was is not None:
            growth = found.setdefault(was[0], _Growth())
            growth.net -= was[1]
        if now is not None:
            growth = found.setdefault(now[0], _Growth())
            growth.net += now[1]
            # What was exempt when it was written is changed like any other.
            was_exempt = before is not None and counted.is_exempt(before.value)
            growth.is_refusable |= was_exempt or not counted.is_exempt(after)

    @staticmethod
    def _expected_record(table: Table[Any], id: str, revision: int | None) -> Record[Any] | None:
        """The record that the transaction replaces, if it happens; `_UNKNOWN` if that is not known here."""
        if not revision:
            return None
        record = table.get(id)
        return record if record is not None and record.revision == revision else _UNKNOWN

    async def _catch_up(self, ops: Sequence[Op], expected: Mapping[str, int]) -> bool:
        """Wait until the tables have the records that are expected; False if they never will."""
        for op in ops:
            kind, _, id = op.key.partition("/")
            counted, revision = self._counted.get(kind), expected.get(op.key)
            if counted is None or not revision:
                continue
            await counted.table.wait_for_change(revision)
            if self._expected_record(counted.table, id, revision) is _UNKNOWN:
                return False
        return True

    # The rest is the store's.

    async def get(self, key: str) -> Entry | None:
        return await self._store.get(key)

    async def range(self, prefix: str, *, limit: int = 0, cursor: str | None = None) -> RangePage:
        return await self._store.range(prefix, limit=limit, cursor=cursor)

    def watch(self, prefix: str, *, since: int) -> AbstractAsyncContextManager[Watch]:
        return self._store.watch(prefix, since=since)

    async def grant_lease(self, ttl_s: int) -> LeaseId:
        return await self._store.grant_lease(ttl_s)

    async def renew_lease(self, lease: LeaseId) -> None:
        await self._store.renew_lease(lease)

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self._store.revoke_lease(lease)

    async def compact(self, before: int) -> None:
        await self._store.compact(before)

    async def revision(self) -> int:
        return await self._store.revision()

    async def check_writes(self) -> None:
        await self._store.check_writes()

    async def close(self) -> None:
        await self._store.close()


# In place of a record that is expected and not known here.
_UNKNOWN: Record[Any] = Record(None, -1)


def _key(kind: str, namespace: Namespace) -> str:
    return f"{_KEYS}{kind}/{namespace}"
