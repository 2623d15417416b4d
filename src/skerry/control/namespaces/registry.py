"""The registry of namespaces: requests about their records, each with its event in one transaction.

A namespace exists by being used; its record holds its quota and its network policy. A record is deleted only
when nothing is left in the namespace, since both go with it. Nothing here enforces them: quotas are enforced
by `admission`, policies by nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from skerry.control.events.log import EventLog
from skerry.control.namespaces.quotas import NamespaceQuotas
from skerry.control.workloads.registry import check_match
from skerry.kit import json_codec
from skerry.kit.clock import Clock
from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.namespaces import NO_QUOTA, NamespaceRecord, Quota, QuotaAmounts
from skerry.model.network import UNRESTRICTED, Egress, NamespaceEgress
from skerry.model.network_policies import OPEN_NAMESPACE, NamespacePolicy
from skerry.store.protocol import Op, Put
from skerry.store.tables.table import Record, Write

MAX_NAMESPACES = 10_000

# How many objects of each kind a namespace has, by namespace; what has none may be left out.
ObjectCounts = Callable[[], Mapping[Namespace, Counter[str]]]


class NamespaceState(NamedTuple):
    """A namespace with what is in it."""

    name: Namespace
    quota: Quota
    used: QuotaAmounts
    objects: Counter[str]  # by kind
    created_at: float | None  # None: it has no record, and exists by use
    revision: int  # of the record in the store; 0: none
    policy: NamespacePolicy = OPEN_NAMESPACE
    egress: Egress = Egress.ALL  # of workloads that choose none

    @property
    def excess(self) -> dict[str, int]:
        """How far it is above its quota, by resource."""
        return self.quota.excess(self.used)


class NamespaceRegistry:
    """The namespaces of one cloud."""

    def __init__(
        self,
        events: EventLog,
        clock: Clock,
        quotas: NamespaceQuotas,
        object_counts: ObjectCounts,
        default_egress: NamespaceEgress = UNRESTRICTED,
    ) -> None:
        self._events = events
        self._clock = clock
        self._quotas = quotas
        self._table = quotas.table
        self._object_counts = object_counts
        self._default_egress = default_egress

    def list(self, more: Iterable[Namespace] = ()) -> list[NamespaceState]:
        """Those that have a record and those in use, by name; the default one and `more` always."""
        counts = self._object_counts()
        names = {DEFAULT_NAMESPACE, *more, *counts, *map(ids.check_namespace, self._table.ids())}
        return [self._state(name, self._table.get(name), counts) for name in sorted(names)]

    async def read(self, name: Namespace, *, exists: bool = False) -> NamespaceState:
        """One, as the store has it. Raises `NotFound` for one without a record that nobody uses, unless it
        `exists` for the caller, who is bound to it."""
        record = await self._table.read(name)
        counts = self._object_counts()
        if record is None and name not in counts and name != DEFAULT_NAMESPACE and not exists:
            raise unknown_namespace(name)
        return self._state(name, record, counts)

    async def revision(self, name: Namespace) -> int:
        """Of its record; 0: it has none."""
        record = await self._table.read(name)
        return 0 if record is None else record.revision

    async def create(self, name: Namespace, quota: Quota, *, actor: str) -> tuple[NamespaceState, bool]:
        """A record of a namespace, and whether it is new. One with another quota raises `AlreadyExists`."""
        made = NamespaceRecord(name, self._clock.now(), quota)
        while True:
            existing = await self._table.read(name)
            if existing is not None:
                if existing.value.quota != quota:
                    raise errors.AlreadyExists(
                        f"namespace {name} exists with another quota; change it (`skerry namespace quota`)"
                    )
                return self._state(name, existing, self._object_counts()), False
            if len(self._table) >= MAX_NAMESPACES:
                raise errors.TooLarge(f"there are {MAX_NAMESPACES} namespaces, and no more are taken")
            ops = [self._table.put(name, made), self._event("created", made, actor)]
            try:
                revision = await self._table.commit(ops, [self._table.expect(name, None)])
            except errors.Conflict:
                continue
            return self._state(name, Record(made, revision), self._object_counts()), True

    async def change(
        self,
        name: Namespace,
        merge: Callable[[NamespaceRecord], NamespaceRecord],
        *,
        actor: str,
        if_match: int | None = None,
    ) -> NamespaceState:
        """Change the quota or the policy of a namespace, which needs no record before. A quota below what is
        used stops nothing: nothing more is admitted until less is used."""
        while True:
            record = await self._table.read(name)
            check_match(0 if record is None else record.revision, if_match)
            before = record.value if record else NamespaceRecord(name, self._clock.now())
            after = merge(before)
            if after == before and record is not None:
                return self._state(name, record, self._object_counts())
            ops: list[Op] = [self._table.put(name, after)]
            if after.quota != before.quota or after.policy == before.policy:
                ops.append(self._event("quota-changed", after, actor))
            if after.policy != before.policy:
                ops.append(self._event("policy-changed", after, actor))
            try:
                revision = await self._table.commit(ops, [self._table.expect(name, record)])
            except errors.Conflict:
                continue
            return self._state(name, Record(after, revision), self._object_counts())

    async def delete(self, name: Namespace, *, actor: str) -> None:
        """Delete the record, with its quota. `FailedPrecondition` while there is something in the
        namespace."""

        def write(record: Record[NamespaceRecord]) -> Write[NamespaceRecord]:
            left = self._object_counts().get(name)
            if left:
                found = ", ".join(
                    f"{count} {kind}{'s' * (count > 1)}" for kind, count in sorted(left.items())
                )
                raise errors.FailedPrecondition(
                    f"there is something in namespace {name}: {found}; delete that first. To remove only its "
                    f"quota: `skerry namespace quota {name} --clear`; its isolation: `skerry namespace "
                    f"policy {name} --open`"
                )
            return Write(record.value, [self._event("deleted", record.value, actor)], is_delete=True)

        await self._table.update(name, write, missing=unknown_namespace(name))

    def _state(
        self,
        name: Namespace,
        record: Record[NamespaceRecord] | None,
        counts: Mapping[Namespace, Counter[str]],
    ) -> NamespaceState:
        return NamespaceState(
            name,
            record.value.quota if record else NO_QUOTA,
            self._quotas.usage.of(name),
            counts.get(name, Counter()),
            record.value.created_at if record else None,
            record.revision if record else 0,
            policy := record.value.policy if record else OPEN_NAMESPACE,
            self._default_egress.of(name) if policy.egress is None else policy.egress,
        )

    def _event(self, kind: str, record: NamespaceRecord, actor: str) -> Put:
        subject = self._table.key(record.name)
        value = record.policy if kind == "policy-changed" else record.quota
        more = {"policy" if kind == "policy-changed" else "quota": json_codec.encode(value).decode()}
        return self._events.put(f"namespace.{kind}", subject, actor=actor, namespace=record.name, **more)


def unknown_namespace(name: Namespace) -> errors.NotFound:
    """The error for a namespace that does not exist."""
    return errors.NotFound(
        f"there is no namespace {name!r}; `skerry namespace list` lists those there are, `skerry namespace "
        f"create {name}` creates it"
    )
