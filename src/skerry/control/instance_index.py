"""All instances in memory: by id, by node, by workload, by owner, and in the order of their creation.

`InstanceIndex` is the index and knows no store; `InstanceTable` has the records and keeps an index of them.
Reads of the control plane come from here. One record holds all that is known of an instance, desired and
observed state together, so that every change is one compare-and-set (docs/adr/0017).
`skerry.control.instances.transitions` has the transitions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from skerry.model.ids import InstanceId, Namespace, NodeId, WorkloadId
from skerry.model.namespace_scope import ListedNamespaces, scope_of
from skerry.model.statuses import TERMINAL
from skerry.model.workloads import Instance, OwnerKind
from skerry.store.protocol import Store
from skerry.store.tables.sorted_map import SortedMap
from skerry.store.tables.table import Record, Table, json_of

K = TypeVar("K")

PREFIX = "instance/"

InstanceRecord = Record[Instance]
InstanceListener = Callable[[InstanceRecord | None, InstanceRecord | None], None]


class InstanceIndex:
    """All instances; `update` applies one change."""

    def __init__(self, records: Iterable[InstanceRecord] = ()) -> None:
        self._records: dict[InstanceId, InstanceRecord] = {}
        self._by_age: dict[Namespace, SortedMap[InstanceId]] = {}
        self._on_node: dict[NodeId, dict[InstanceId, None]] = {}
        self._of_workload: dict[WorkloadId, dict[InstanceId, None]] = {}
        self._of_owner: dict[tuple[OwnerKind, str], dict[InstanceId, None]] = {}
        self._terminal: dict[InstanceId, None] = {}  # in the order in which they ended
        for record in records:
            self.update(None, record)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[InstanceRecord]:
        """All, the eldest first."""
        return self.after(None)

    def get(self, id: str) -> InstanceRecord | None:
        return self._records.get(InstanceId(id))

    def after(self, position: str | None, namespace: ListedNamespaces = None) -> Iterator[InstanceRecord]:
        """Those created after the one at `position`, by `age_key`; of some namespaces or of all."""
        found = heapq.merge(*(ages.scan("", position) for ages in self._ages(namespace)))
        return (self._records[id] for _, id in found)

    def count(self, namespace: ListedNamespaces = None) -> int:
        """How many there are, in some namespaces or in all."""
        return len(self._records) if namespace is None else sum(map(len, self._ages(namespace)))

    def _ages(self, namespace: ListedNamespaces) -> Iterable[SortedMap[InstanceId]]:
        named = scope_of(namespace).namespaces
        if named is None:
            return self._by_age.values()
        return [self._by_age[one] for one in dict.fromkeys(named) if one in self._by_age]

    def counts(self) -> dict[Namespace, int]:
        """How many there are in each namespace that has any."""
        return {namespace: len(ages) for namespace, ages in self._by_age.items()}

    def on_node(self, node: NodeId) -> list[InstanceRecord]:
        return [self._records[id] for id in self._on_node.get(node, ())]

    def of_workload(self, workload: WorkloadId) -> list[InstanceRecord]:
        return [self._records[id] for id in self._of_workload.get(workload, ())]

    def of_owner(self, kind: OwnerKind, id: str) -> list[InstanceRecord]:
        """Those that a service or job owns, in the order in which they were added."""
        return [self._records[each] for each in self._of_owner.get((kind, id), ())]

    def owner_ids(self, kind: OwnerKind) -> list[str]:
        """Those of that kind that have instances."""
        return [id for owner_kind, id in self._of_owner if owner_kind is kind]

    def count_terminal(self) -> int:
        """How many have ended for good and are still known. Tries are not counted: their job keeps them."""
        return len(self._terminal)

    def first_terminal(self, count: int) -> list[InstanceRecord]:
        """Of those, the ones that ended first."""
        return [self._records[id] for id in islice(self._terminal, count)]

    def update(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        """One instance was `before` and is `after`; None: not there."""
        was = before.value if before else None
        now = after.value if after else None
        if after is not None:
            self._records[after.value.id] = after
        elif was is not None:
            del self._records[was.id]
        if was is None or now is None or (was.created_at, was.namespace) != (now.created_at, now.namespace):
            self._forget_age(was)
            self._note_age(now)
        one = now or was
        if one is None:
            return
        _reindex(self._on_node, one.id, was.node if was else None, now.node if now else None)
        _reindex(self._of_workload, one.id, was.workload if was else None, now.workload if now else None)
        _reindex(self._of_owner, one.id, _owner_key(was), _owner_key(now))
        if now is not None and now.observed.status in TERMINAL and not _is_try(now):
            self._terminal.setdefault(one.id)
        else:
            self._terminal.pop(one.id, None)

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


class InstanceTable(Table[Instance]):
    """The records of instances, and the index of them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, PREFIX, json_of(Instance))
        self.index = InstanceIndex()
        self.listen(self.index.update)  # first, so that other listeners find a change in the index


def age_key(instance: Instance) -> str:
    """Its position in the order of age."""
    return age_key_at(instance.created_at, instance.id)


def age_key_at(created_at: float, id: str) -> str:
    """A text that sorts by age and then by id."""
    return f"{int(created_at * 1e6):020d}/{id}"


def _is_try(instance: Instance) -> bool:
    return instance.owner is not None and instance.owner.kind is OwnerKind.JOB


def _owner_key(instance: Instance | None) -> tuple[OwnerKind, str] | None:
    if instance is None or instance.owner is None:
        return None
    return instance.owner.kind, instance.owner.id


def _reindex(index: dict[K, dict[InstanceId, None]], id: InstanceId, was: K | None, now: K | None) -> None:
    if was == now:
        return
    if was is not None:
        del index[was][id]
        if not index[was]:
            del index[was]
    if now is not None:
        index.setdefault(now, {})[id] = None
