"""Steps of instances made durable: each record with the events that tell of it, if it is still as it was.

The one place that turns a `InstanceTransition` into operations of the store. Whoever decides a step says on
which record; if that has changed in the meantime, nothing is written and `Conflict` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceCache, InstanceRecord
from skerry.control.instances.transitions import InstanceTransition
from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.store import fencing
from skerry.store.protocol import MAX_OPS, Delete, Expect, Op, Store

# The record and its events: a wish that goes over two statuses has three.
_OPS_PER_STEP = 4
STEPS_PER_COMMIT = MAX_OPS // _OPS_PER_STEP

PlannedTransition = tuple[InstanceRecord, InstanceTransition]


class TransitionWriter:
    """Commits steps of instances, and lets our own reads see them."""

    def __init__(self, store: Store, events: EventLog, mirror: InstanceCache) -> None:
        self._store = store
        self._events = events
        self._mirror = mirror

    def ops(self, step: InstanceTransition) -> list[Op]:
        """The record and its events."""
        instance = step.after
        key = self._mirror.records.key(instance.id)
        ops: list[Op] = [Delete(key) if step.is_purged else self._mirror.records.put(instance)]
        for kind, reason, data in step.told:
            ops.append(
                self._events.put(
                    f"instance.{kind}",
                    key,
                    actor=step.actor,
                    reason=reason,
                    request_id=instance.request_id,
                    **data,
                )
            )
        return ops

    async def commit(self, decided: Iterable[PlannedTransition], *, fence: Expect | None = None) -> int:
        """All of it or nothing; returns when it is durable and the cache has it."""
        ops: list[Op] = []
        expect: list[Expect] = []
        for known, step in decided:
            ops += self.ops(step)
            expect.append(self._mirror.records.expect(known))
        revision = await fencing.commit(self._store, ops, expect, fence)
        await self._mirror.seen(revision)
        return revision

    async def read(self, id: str) -> InstanceRecord | None:
        """The instance as it is in the store, however far behind the cache is."""
        entry = await self._store.get(self._mirror.records.key(id))
        return None if entry is None else self._mirror.records.read(entry)

    async def change(
        self,
        id: str,
        decide: Callable[[InstanceRecord], InstanceTransition | None],
        *,
        fence: Expect | None = None,
    ) -> InstanceTransition | None:
        """Do what `decide` says, on what is there; None if that is nothing. `NotFound` if it is gone."""
        known = self._mirror.census.get(id) or await self.read(id)
        while True:
            if known is None:
                raise unknown_instance(id)
            step = decide(known)
            if step is None:
                # That nothing is to be done must be true of what is, not only of what we have heard of.
                fresh = await self.read(id)
                if fresh == known:
                    return None
                known = fresh
                continue
            try:
                await self.commit([(known, step)], fence=fence)
            except errors.Conflict:
                known = await self.read(id)
                continue
            return step


def unknown_instance(id: str, namespace: Namespace | None = None) -> errors.NotFound:
    within, option = (f" in the namespace {namespace!r}", f" -n {namespace}") if namespace else ("", "")
    return errors.NotFound(
        f"there is no instance {id[:128]!r}{within}; `skerry get instances{option}` lists those there are"
    )
