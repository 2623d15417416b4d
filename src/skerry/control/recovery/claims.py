"""Recovery of instances that nodes run and a restored store does not know.

A node that runs an instance without an order claims it, with the receipt of its last order for it
(`skerry.control.recovery.order_receipts`). If the store knew that order, the instance was given up since, and
the node must remove it. If the store was restored from a backup from before that order, the instance is
written into the store, with its workload, and continues. `decide_claim` is pure; `ClaimProcessor` writes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

import structlog
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances.transitions import InstanceTransition, TransitionEvent
from skerry.control.instances.writer import TransitionWriter
from skerry.control.recovery import order_receipts
from skerry.control.recovery.order_receipts import OrderReceipt
from skerry.control.recovery.store_history import StoreHistory, StoreStamp
from skerry.control.workloads.registry import WorkloadRegistry, name_key
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import InstanceClaim
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.statuses import TERMINAL, DesiredStatus
from skerry.model.workloads import Instance, ObservedState, RolloutStrategy, Workload
from skerry.store.protocol import ABSENT, Expect, Op, Put, Store

log = structlog.get_logger(__name__)

_REASON = "its node runs it; the store was restored from a backup that did not know"


class ClaimDecision(enum.StrEnum):
    """The decision about a claim."""

    ORDERED = "ordered"  # it is among the node's orders
    ADOPTED = "adopted"
    REMOVED = "removed"  # the node is to remove it


def decide_claim(record: Instance | None, receipt: OrderReceipt, *, is_unknown: bool) -> ClaimDecision:
    """The decision about a claim with this `receipt`, if the store has `record` of the instance.

    Of two copies the later one counts. Of the same one on two nodes, the one in the record: a record without
    a node is from before its placement.
    """
    claimed = receipt.instance
    if record is not None and record.node == receipt.node and record.generation >= claimed.generation:
        return ClaimDecision.ORDERED
    if not is_unknown:
        return ClaimDecision.REMOVED
    if record is None or claimed.generation > record.generation:
        return ClaimDecision.ADOPTED
    is_unplaced = record.node is None and record.observed.status not in TERMINAL
    if (
        claimed.generation == record.generation
        and is_unplaced
        and record.desired is not DesiredStatus.DESTROYED
    ):
        return ClaimDecision.ADOPTED
    return ClaimDecision.REMOVED


def adopted_instance(receipt: OrderReceipt, report: InstanceReport) -> Instance:
    """The instance as it was ordered, and as its node sees it now."""
    observed = ObservedState(
        report.status,
        report.at,
        report.reason,
        f"node/{receipt.node}",
        report.exit_code,
        has_passed=report.has_passed,
        checked_at=report.checked_at,
        check_message=report.check_message,
    )
    return replace(
        receipt.instance,
        node=receipt.node,
        observed=observed,
        ip=report.ip,
        ip6=report.ip6,
        restarts=report.restarts,
        leaving=None,
        is_adopted=True,
    )


class ClaimProcessor:
    """Judges claims of nodes, and gives receipts."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        history: StoreHistory,
        *,
        instance_table: InstanceTable,
        workloads: WorkloadRegistry,
        key: bytes,
    ) -> None:
        """`key` is of receipts, and a secret of the servers of this cloud."""
        self._store = store
        self._events = events
        self._history = history
        self._table = instance_table
        self._workloads = workloads
        self._writer = TransitionWriter(events, instance_table)
        self._key = key

    @property
    def is_settling(self) -> bool:
        """True while the store was restored a moment ago and nodes are to claim all that they run."""
        return self._history.is_settling

    async def settled(self) -> None:
        """Wait until the store was restored and has settled; for ever, if it was not restored."""
        await self._history.restored()
        await self._history.settled()

    def with_receipt(self, node: NodeId, order: InstanceOrder) -> InstanceOrder:
        """`order` as it is sent to `node`."""
        known = self._table.get(order.instance)
        if known is None or known.value.node != node or known.value.generation != order.generation:
            return order  # it has changed since, and so will the order
        receipt = OrderReceipt(node, self._history.stamp(known.revision), known.value)
        return replace(order, receipt=order_receipts.write(self._key, receipt))

    async def take(self, node: NodeId, claims: Sequence[InstanceClaim]) -> list[InstanceId]:
        """Adopt instances that the store does not know; returns those that the node must remove."""
        if not claims:
            return []
        forgotten = await self._history.forgotten()
        decisions = [(claim, await self._take(node, claim, forgotten)) for claim in claims]
        return [claim.report.instance for claim, decision in decisions if decision is ClaimDecision.REMOVED]

    async def _take(
        self, node: NodeId, claim: InstanceClaim, forgotten: Callable[[StoreStamp], bool]
    ) -> ClaimDecision:
        receipt = order_receipts.read(self._key, claim.receipt)
        if receipt is None or receipt.node != node or receipt.instance.id != claim.report.instance:
            log.warning("claim.unproven", node=node, instance=claim.report.instance)
            return ClaimDecision.REMOVED
        is_unknown = forgotten(receipt.stamp)
        while True:
            record = await self._table.read(receipt.instance.id)
            decision = decide_claim(record and record.value, receipt, is_unknown=is_unknown)
            if decision is not ClaimDecision.ADOPTED:
                return decision
            try:
                await self._adopt(record, receipt, claim.report)
            except errors.Conflict:
                continue  # it is another meanwhile, or its workload is
            await self._history.note_restored("a node runs what the store does not know")
            return decision

    async def _adopt(
        self, record: InstanceRecord | None, receipt: OrderReceipt, report: InstanceReport
    ) -> None:
        instance, ops, expect = await self._with_workload(adopted_instance(receipt, report))
        event = TransitionEvent("adopted", _REASON, {"node": receipt.node, "status": report.status})
        step = InstanceTransition(instance, f"node/{receipt.node}", (event,))
        expect.append(self._table.expect(instance.id, record))
        await self._table.commit([*self._writer.ops(step), *ops], expect)
        log.info(
            "instance.adopted",
            instance=instance.id,
            node=receipt.node,
            status=report.status,
            request_id=instance.request_id,
        )

    async def _with_workload(self, instance: Instance) -> tuple[Instance, list[Op], list[Expect]]:
        """`instance`, and the operations that write its workload as it was at the order."""
        id, table = instance.workload, self._workloads.table
        if id is None:
            return instance, [], []
        record = await table.read(id)
        if record is not None:
            if record.value.version >= instance.version:
                return instance, [], []
            # Nothing of the older version is changed for it: what runs, runs.
            after = replace(
                record.value, spec=instance.spec, version=instance.version, rollout=RolloutStrategy.NONE
            )
            return instance, [table.put(id, after), self._event(after)], [table.expect(id, record)]
        name = name_key(instance.namespace, instance.spec.name)
        if await self._store.get(name) is not None:  # of another workload by now
            return replace(instance, workload=None, version=0), [], [table.expect(id, None)]
        workload = Workload(
            id, instance.spec, instance.created_at, version=instance.version, namespace=instance.namespace
        )
        ops: list[Op] = [table.put(id, workload), Put(name, id.encode()), self._event(workload)]
        return instance, ops, [table.expect(id, None), Expect(name, ABSENT)]

    def _event(self, workload: Workload) -> Put:
        return self._events.put(
            "workload.adopted",
            self._workloads.table.key(workload.id),
            actor="skerry",
            reason=_REASON,
            name=workload.spec.name,
            namespace=workload.namespace,
        )
