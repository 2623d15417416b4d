"""All instances in memory: found by id, by node, by workload, and in the order in which they were made.

`InstanceIndex` is the index and knows no store; `InstanceCache` keeps one in line with the store and tells
everybody who listens. Reads of the control plane come from here. Nothing here decides or writes.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import TypeVar

from skerry.control.records import INSTANCES, Record, RecordCodec
from skerry.model.ids import InstanceId, Namespace, NodeId, WorkloadId
from skerry.model.statuses import TERMINAL
from skerry.model.workloads import Instance
from skerry.store.protocol import Store
from skerry.store.tables.cache import PrefixCache, RecordChange
from skerry.store.tables.sorted_map import SortedMap

K = TypeVar("K")

InstanceRecord = Record[Instance]
InstanceListener = Callable[[InstanceRecord | None, InstanceRecord | None], None]


class InstanceIndex:
    """Every instance there is; `move` keeps it right, one change at a time."""

    def __init__(self, known: Iterable[InstanceRecord] = ()) -> None:
        self._known: dict[InstanceId, InstanceRecord] = {}
        self._by_age: dict[Namespace, SortedMap[InstanceId]] = {}
        self._on_node: dict[NodeId, dict[InstanceId, None]] = {}
        self._of_workload: dict[WorkloadId, dict[InstanceId, None]] = {}
        self._over: dict[InstanceId, None] = {}  # in the order in which they ended
        for held in known:
            self.move(None, held)

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[InstanceRecord]:
        """All, the eldest first."""
        return self.behind(None)

    def get(self, id: str) -> InstanceRecord | None:
        return self._known.get(InstanceId(id))

    def behind(self, place: str | None, namespace: Namespace | None = None) -> Iterator[InstanceRecord]:
        """Those that were made after the one at `place`, as `age_key` tells; of one namespace or of all."""
        found: Iterator[tuple[str, InstanceId]]
        if namespace is None:
            found = heapq.merge(*(some.scan("", place) for some in self._by_age.values()))
        else:
            found = self._by_age.get(namespace, SortedMap()).scan("", place)
        return (self._known[id] for _, id in found)

    def count(self, namespace: Namespace | None = None) -> int:
        """How many there are, in one namespace or in all."""
        if namespace is None:
            return len(self._known)
        return len(self._by_age.get(namespace, ()))

    def on_node(self, node: NodeId) -> list[InstanceRecord]:
        return [self._known[id] for id in self._on_node.get(node, ())]

    def of_workload(self, workload: WorkloadId) -> list[InstanceRecord]:
        return [self._known[id] for id in self._of_workload.get(workload, ())]

    def count_over(self) -> int:
        """How many have ended for good and are still known."""
        return len(self._over)

    def first_over(self, count: int) -> list[InstanceRecord]:
        """Of those, the ones that ended first."""
        return [self._known[id] for id in islice(self._over, count)]

    def move(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        """One instance was `before` and is `after`; None: not there."""
        was = before.value if before else None
        now = after.value if after else None
        if after is not None:
            self._known[after.value.id] = after
        elif was is not None:
            del self._known[was.id]
        if was is None or now is None or (was.created_at, was.namespace) != (now.created_at, now.namespace):
            self._forget_age(was)
            self._note_age(now)
        one = now or was
        if one is None:
            return
        _refile(self._on_node, one.id, was.node if was else None, now.node if now else None)
        _refile(self._of_workload, one.id, was.workload if was else None, now.workload if now else None)
        if now is not None and now.observed.status in TERMINAL:
            self._over.setdefault(one.id)
        else:
            self._over.pop(one.id, None)

    def _note_age(self, one: Instance | None) -> None:
        if one is not None:
            self._by_age.setdefault(one.namespace, SortedMap()).put(age_key(one), one.id)

    def _forget_age(self, one: Instance | None) -> None:
        if one is None:
            return
        of_its_namespace = self._by_age[one.namespace]
        of_its_namespace.remove(age_key(one))
        if not of_its_namespace:
            del self._by_age[one.namespace]


class InstanceCache:
    """The index of a store's instances, kept right by its watch."""

    def __init__(self, store: Store) -> None:
        self.records: RecordCodec[Instance] = RecordCodec(INSTANCES, Instance)
        self.census = InstanceIndex()
        self._view = PrefixCache(store, INSTANCES, self.records.read, changed=self._moved)
        self._store = store
        self._listeners: list[InstanceListener] = []
        self._turns = count()
        self._served = -1  # who took a turn before this one is caught up
        self._catching_up = asyncio.Lock()

    async def run(self) -> None:
        """Follow the store for ever."""
        await self._view.run()

    async def ready(self) -> None:
        await self._view.ready()

    async def seen(self, revision: int) -> None:
        """Wait for the change of an instance that got `revision`."""
        await self._view.seen(revision)

    async def caught_up(self) -> None:
        """Wait for everything that was durable when this was called; all who wait share the work."""
        turn = next(self._turns)
        async with self._catching_up:
            if turn < self._served:
                return
            served = next(self._turns)
            await self._view.reached(await self._store.revision())
            self._served = served

    def listen(self, changed: InstanceListener) -> Callable[[], None]:
        """Call `changed` with every change from now on, after the index has it; the result ends that."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def _moved(self, moves: Sequence[RecordChange[InstanceRecord]]) -> None:
        moves = [move for move in moves if _differ(move.before, move.after)]
        for _, before, after in moves:
            self.census.move(before, after)
        for changed in tuple(self._listeners):
            for _, before, after in moves:
                changed(before, after)


def age_key(instance: Instance) -> str:
    """Where it stands among all."""
    return age_key_at(instance.created_at, instance.id)


def age_key_at(created_at: float, id: str) -> str:
    """A text that sorts by age and then by id."""
    return f"{int(created_at * 1e6):020d}/{id}"


def _differ(before: InstanceRecord | None, after: InstanceRecord | None) -> bool:
    return before is None or after is None or before.revision != after.revision


def _refile(index: dict[K, dict[InstanceId, None]], id: InstanceId, was: K | None, now: K | None) -> None:
    if was == now:
        return
    if was is not None:
        del index[was][id]
        if not index[was]:
            del index[was]
    if now is not None:
        index.setdefault(now, {})[id] = None
