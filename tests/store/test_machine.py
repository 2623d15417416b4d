"""Every backend against a small model of the contract, at random: transactions, watches, leases, history.

The model is written apart from `skerry.store.local.keyspace` on purpose: a dictionary, a list of all batches,
nothing clever.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.settings import StoreSettings
from skerry.store.etcd.store import EtcdStore
from skerry.store.local.memory import MemoryStore
from skerry.store.local.store import LocalStore
from skerry.store.protocol import NO_LEASE, Batch, Delete, Entry, Expect, LeaseId, Op, Put, Store
from skerry.store.sqlite.store import SqliteStore
from tests.support.etcd import EtcdServer
from tests.support.waiting import PATIENCE_S, eventually

T = TypeVar("T")

HISTORY = 12
TTL_S = 100
KEYS = ("a", "a/1", "a/2", "b", "b/ä", "c")
PREFIXES = ("", "a", "a/", "b", "c", "d")

_numbers = itertools.count()

# What a test writes: a key, and a value or None to remove it; the value is put with the newest lease or none.
writes = st.dictionaries(
    st.sampled_from(KEYS), st.none() | st.tuples(st.binary(max_size=3), st.booleans()), max_size=4
)
# What it expects: True for what is there, False for something else.
expectations = st.dictionaries(st.sampled_from(KEYS), st.sampled_from([True, True, True, False]), max_size=2)
transactions = st.tuples(writes, expectations)


class Model:
    """The contract in the plainest words."""

    def __init__(self, revision: int, history: int | None) -> None:
        self.revision = revision
        self.floor = revision
        self.history = history
        self.entries: dict[str, Entry] = {}
        self.leases: dict[LeaseId, float] = {}
        self.batches: list[tuple[int, dict[str, Entry | None]]] = []

    def commit(self, ops: list[Op], expect: list[Expect]) -> int | type[Exception]:
        for e in expect:
            found = self.entries[e.key].revision if e.key in self.entries else 0
            if found != e.revision:
                return errors.Conflict
        if any(isinstance(op, Put) and op.lease and op.lease not in self.leases for op in ops):
            return errors.NotFound
        self.apply({op.key: op if isinstance(op, Put) else None for op in ops})
        return self.revision

    def apply(self, wanted: dict[str, Put | None]) -> None:
        changes: dict[str, Entry | None] = {}
        for key, put in wanted.items():
            if put is not None:
                created = self.entries[key].created if key in self.entries else self.revision + 1
                changes[key] = Entry(key, put.value, created, self.revision + 1, put.lease)
            elif key in self.entries:
                changes[key] = None
        if not changes:
            return
        self.revision += 1
        self.batches.append((self.revision, changes))
        for key, entry in changes.items():
            if entry is None:
                del self.entries[key]
            else:
                self.entries[key] = entry
        if self.history is not None:
            self.floor = max(self.floor, self.revision - self.history)

    def end(self, lease: LeaseId) -> None:
        del self.leases[lease]
        self.apply({key: None for key, entry in self.entries.items() if entry.lease == lease})

    def seen(self, prefix: str, since: int) -> list[tuple[int, list[tuple[str, Entry | None]]]]:
        result = []
        for revision, changes in self.batches:
            mine = sorted((key, entry) for key, entry in changes.items() if key.startswith(prefix))
            if revision > since and mine:
                result.append((revision, mine))
        return result


class Machine(RuleBasedStateMachine):
    """Rules that do the same to a backend and to the model. Subclasses open the backend."""

    is_local: ClassVar[bool] = True
    forgets: ClassVar[bool] = False

    leases: Bundle[LeaseId] = Bundle("leases")
    watches: Bundle[int] = Bundle("watches")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.folder = Path(tempfile.mkdtemp())
        self.stack = AsyncExitStack()
        self.open_watches: dict[int, tuple[AsyncIterator[Batch], str, int]] = {}
        self.newest_lease = NO_LEASE
        self.store: Store
        self.model: Model

    async def open(self) -> Store:
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        if hasattr(self, "store"):
            self.run(self.store.close())
        self.loop.run_until_complete(no_task_is_left())
        self.loop.close()
        shutil.rmtree(self.folder)

    @initialize()
    def start(self) -> None:
        self.store = self.run(self.open())
        self.model = Model(self.run(self.store.revision()), HISTORY if self.is_local else None)

    def to_transaction(
        self, wanted: dict[str, tuple[bytes, bool] | None], expected: dict[str, bool]
    ) -> tuple[list[Op], list[Expect]]:
        ops: list[Op] = [
            Delete(key) if value is None else Put(key, value[0], self.newest_lease if value[1] else NO_LEASE)
            for key, value in wanted.items()
        ]
        expect = []
        for key, holds in expected.items():
            found = self.model.entries[key].revision if key in self.model.entries else 0
            expect.append(Expect(key, found if holds else found + 1))
        return ops, expect

    @rule(transaction=transactions)
    def commit(self, transaction: Any) -> None:
        ops, expect = self.to_transaction(*transaction)
        self.same(self.run(outcome(self.store.commit(ops, expect))), self.model.commit(ops, expect))

    @precondition(lambda self: self.is_local)  # etcd may take them in any order
    @rule(group=st.lists(transactions, min_size=2, max_size=5))
    def commit_together(self, group: list[Any]) -> None:
        prepared = [self.to_transaction(*transaction) for transaction in group]

        async def together() -> list[Any]:
            return await asyncio.gather(*(outcome(self.store.commit(*one)) for one in prepared))

        for found, one in zip(self.run(together()), prepared, strict=True):
            self.same(found, self.model.commit(*one))

    @rule(target=leases)
    def grant(self) -> LeaseId:
        lease = self.run(self.store.grant_lease(TTL_S))
        self.model.leases[lease] = self.clock.monotonic() + TTL_S
        self.newest_lease = lease
        return lease

    @rule(lease=leases)
    def keep(self, lease: LeaseId) -> None:
        is_alive = lease in self.model.leases
        self.same(self.run(outcome(self.store.renew_lease(lease))), None if is_alive else errors.NotFound)
        if is_alive:
            self.model.leases[lease] = self.clock.monotonic() + TTL_S

    @rule(lease=leases)
    def drop(self, lease: LeaseId) -> None:
        is_alive = lease in self.model.leases
        self.same(self.run(outcome(self.store.revoke_lease(lease))), None if is_alive else errors.NotFound)
        if is_alive:
            self.model.end(lease)

    @precondition(lambda self: self.is_local)
    @rule(seconds=st.sampled_from([1, TTL_S // 2, TTL_S]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)
        assert isinstance(self.store, LocalStore)
        self.run(self.store.expire())
        for lease, deadline in list(self.model.leases.items()):
            if deadline <= self.clock.monotonic():
                self.model.end(lease)

    @rule(back=st.integers(-2, 8))
    def compact(self, back: int) -> None:
        before = self.model.revision - back
        self.run(self.store.compact(before))
        self.model.floor = max(self.model.floor, min(before - 1, self.model.revision))

    @rule(target=watches, prefix=st.sampled_from(PREFIXES), back=st.integers(0, 15))
    def watch(self, prefix: str, back: int) -> Any:
        since = self.model.revision - back
        if since < 0 or (not self.is_local and since < self.model.floor):
            return multiple()  # before this test's time
        entering = self.stack.enter_async_context(self.store.watch(prefix, since=since))
        if since < self.model.floor:
            self.same(self.run(outcome(entering)), errors.Compacted)
            return multiple()
        number = next(_numbers)
        self.open_watches[number] = (self.run(entering), prefix, since)
        return number

    @rule(number=watches)
    def read(self, number: int) -> None:
        if number not in self.open_watches:
            return
        batches, prefix, place = self.open_watches[number]
        wanted = self.model.seen(prefix, place)
        if not self.is_local and place < self.model.floor:
            del self.open_watches[number]  # etcd may have sent them before it forgot
            return
        for revision, changes in wanted:
            found = self.run(outcome(anext(batches)))
            if found is errors.Compacted:
                # Right only if what comes next is no longer kept.
                assert revision <= self.model.floor
                del self.open_watches[number]
                return
            assert found.revision == revision
            assert [(c.key, c.entry) for c in found.changes] == changes
            place = revision
        self.open_watches[number] = (batches, prefix, max(place, self.model.revision))

    @precondition(lambda self: not self.forgets)
    @rule()
    def restart(self) -> None:
        self.run(self.stack.aclose())
        self.stack = AsyncExitStack()
        self.open_watches.clear()
        self.run(self.store.close())
        self.store = self.run(self.open())
        if self.is_local:
            for lease in self.model.leases:
                self.model.leases[lease] = self.clock.monotonic() + TTL_S
        assert self.run(self.store.revision()) == self.model.revision

    @rule(prefix=st.sampled_from(PREFIXES), limit=st.integers(0, 3))
    def look(self, prefix: str, limit: int) -> None:
        found: list[Entry] = []
        cursor = None
        while True:
            page = self.run(self.store.range(prefix, limit=limit, cursor=cursor))
            found.extend(page.entries)
            cursor = page.cursor
            if cursor is None:
                break
        assert found == [e for key, e in sorted(self.model.entries.items()) if key.startswith(prefix)]

    @invariant()
    def all_is_the_same(self) -> None:
        if not hasattr(self, "model"):
            return
        page = self.run(self.store.range(""))
        assert page.revision == self.model.revision
        assert list(page.entries) == [entry for _, entry in sorted(self.model.entries.items())]

    @staticmethod
    def same(found: Any, wanted: Any) -> None:
        assert found == wanted


async def no_task_is_left() -> None:
    """grpcio ends a cancelled stream in a task of its own; with the loop gone it would never end."""
    await eventually(lambda: len(asyncio.all_tasks()) == 1)


async def outcome(work: Any) -> Any:
    """What it returned, or the class of what it raised."""
    try:
        return await work
    except errors.SkerryError as error:
        return type(error)


class MemoryMachine(Machine):
    forgets = True

    async def open(self) -> Store:
        return MemoryStore(self.clock, history=HISTORY)


class SqliteMachine(Machine):
    async def open(self) -> Store:
        return await SqliteStore.open(self.folder / "store.db", self.clock, history=HISTORY)


def test_memory_does_what_the_model_does() -> None:
    run_state_machine_as_test(MemoryMachine, settings=settings(max_examples=60, stateful_step_count=40))


def test_sqlite_does_what_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry.store.sqlite.store.CHECKPOINT_EVERY", 4)
    run_state_machine_as_test(SqliteMachine, settings=settings(max_examples=60, stateful_step_count=40))


@pytest.mark.timeout(900)
def test_etcd_does_what_the_model_does(etcd_server: EtcdServer) -> None:
    class EtcdMachine(Machine):
        is_local = False

        def __init__(self) -> None:
            super().__init__()
            self.prefix = f"/machine-{next(_numbers)}/"

        async def open(self) -> Store:
            settings = StoreSettings(etcd_prefix=self.prefix, timeout_s=20.0)
            return await EtcdStore.open([etcd_server.address], settings, tls=False)

    run_state_machine_as_test(
        EtcdMachine,
        settings=settings(
            max_examples=25, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
