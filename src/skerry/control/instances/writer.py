"""Writes transitions of instances: each record with its events, if it has not changed.

The one place that turns an `InstanceTransition` into operations of the store. A transition is decided on a
record; if that has changed in the meantime, nothing is written and `Conflict` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances.transitions import InstanceTransition
from skerry.model import errors
from skerry.model.events import NAMESPACE
from skerry.model.ids import Namespace
from skerry.model.workloads import Instance
from skerry.store.protocol import MAX_OPS, Expect, Op
from skerry.store.tables.table import Write

# The record and its events: a request that passes two statuses has three.
_OPS_PER_STEP = 4
STEPS_PER_COMMIT = MAX_OPS // _OPS_PER_STEP

PlannedTransition = tuple[InstanceRecord, InstanceTransition]


class TransitionWriter:
    """Commits steps of instances, and lets our own reads see them."""

    def __init__(self, events: EventLog, table: InstanceTable) -> None:
        self._events = events
        self._table = table

    def ops(self, step: InstanceTransition) -> list[Op]:
        """The record and its events."""
        return self._table.ops(step.after.id, self._write(step))

    async def commit(
        self,
        decided: Iterable[PlannedTransition],
        *,
        fence: Expect | None = None,
        ops: Sequence[Op] = (),
        expect: Sequence[Expect] = (),
    ) -> int:
        """All of it or nothing, with `ops` of other tables; returns when it is durable and our own reads see
        it."""
        ops, expect = [*ops], [*expect]
        for record, step in decided:
            ops += self.ops(step)
            expect.append(self._table.expect(record.value.id, record))
        return await self._table.commit(ops, expect, fence)

    async def change(
        self,
        id: str,
        decide: Callable[[InstanceRecord], InstanceTransition | None],
        *,
        fence: Expect | None = None,
    ) -> Instance:
        """Write the transition that `decide` makes of the present record; returns the instance after it.
        `NotFound` if there is none."""

        def write(record: InstanceRecord) -> Write[Instance] | None:
            step = decide(record)
            return None if step is None else self._write(step)

        return await self._table.update(id, write, missing=unknown_instance(id), fence=fence)

    def _write(self, step: InstanceTransition) -> Write[Instance]:
        key = self._table.key(step.after.id)
        events = [
            self._events.put(
                f"instance.{kind}",
                key,
                actor=step.actor,
                reason=reason,
                request_id=step.after.request_id,
                **{NAMESPACE: step.after.namespace, **data},
            )
            for kind, reason, data in step.events
        ]
        return Write(step.after, events, step.is_purged)


def unknown_instance(id: str, namespace: Namespace | None = None) -> errors.NotFound:
    within, option = (f" in the namespace {namespace!r}", f" -n {namespace}") if namespace else ("", "")
    return errors.NotFound(
        f"there is no instance {id[:128]!r}{within}; `skerry get instances{option}` lists those there are"
    )
