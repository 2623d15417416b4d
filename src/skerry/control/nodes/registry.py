"""The registry of nodes: register, report, cordon, drain, unregister, and liveness.

A node is one record of the store, `node/<id>`, which changes only with lasting facts. Its heartbeats are
separate (`skerry.control.nodes.liveness`), and so is its subnet (`skerry.control.nodes.subnets`). Nodes
register by their session (`skerry.control.sessions.node_session`); foreign nodes by the calls of Kudo's
documents: they take no orders, and are removed when they have been lost for long.
`skerry.control.placement.reconciler` places instances by the conditions of nodes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice

import structlog
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.nodes import index, transitions
from skerry.control.nodes.conditions import NodeCondition
from skerry.control.nodes.index import NodeChangeCallback, NodeIndex
from skerry.control.nodes.liveness import HeartbeatPublisher, NodeHeartbeat
from skerry.control.nodes.pause_aware_clock import PauseAwareClock
from skerry.control.nodes.subnets import SubnetAllocator
from skerry.control.nodes.transitions import NodeTransition
from skerry.kit.clock import Clock
from skerry.model import errors, ids
from skerry.model.ids import NodeId
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import ForeignReport, Liveness, Node, ReportedInstance
from skerry.model.resources import Resources
from skerry.model.settings import FleetSettings
from skerry.model.statuses import TERMINAL, NodeStatus
from skerry.store.protocol import NO_LEASE, Expect, Op, Store
from skerry.store.tables.table import Record, Write

log = structlog.get_logger(__name__)

# Long enough for address caches to expire, and for a machine to be set up anew.
SUBNET_GRACE_S = 600
# More are free at once: a node that asks for one subnet after another must not take up the pool.
_MOST_FORMER = 8
_RETRY_S = 1.0
_AT_ONCE = 64


class NodeRegistry:
    """Every node, read from memory, changed in transactions, each with its event."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        instances: InstanceTable,
        clock: Clock,
        settings: FleetSettings,
        *,
        fingerprint: str,
        server: str,
    ) -> None:
        """`fingerprint` is that of the cloud's CA; `server` is where people reach this server."""
        self._store = store
        self._events = events
        self._instance_table = instances
        self._instances = instances.index
        self._clock = clock
        self._settings = settings
        self._subnets = SubnetAllocator(store, settings.subnets, fingerprint)
        self.heartbeat_clock = PauseAwareClock(clock)
        self.heartbeats = HeartbeatPublisher(store, self.heartbeat_clock, settings, server=server)
        self._index = NodeIndex(store, self.heartbeat_clock, settings, self.heartbeats)
        self._table = self._index.table
        self._foreign_reports: dict[NodeId, ForeignReport] = {}
        self._unsettled: dict[NodeId, None] = {}  # in the order in which something happened to them
        self._wake = asyncio.Event()
        self._index.listen(self._changed)
        instances.listen(self._instance_changed)

    async def run(self) -> None:
        """Follow the store and publish the heartbeats of this server's nodes, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.heartbeat_clock.run())
            group.create_task(self._index.run())
            group.create_task(self._subnets.table.run())
            group.create_task(self.heartbeats.run())
            group.create_task(self._update_for_ever())

    async def ready(self) -> None:
        """Wait until all nodes and their heartbeats are known."""
        await self._index.ready()
        await self._subnets.table.ready()

    # Reading

    def get(self, id_or_name: str) -> Node:
        """The node of this id, else the only one of this name; `NotFound` or `FailedPrecondition`
        otherwise."""
        return self._index.get(id_or_name)

    def list(self) -> Sequence[Node]:
        """All of them, by id."""
        return self._index.all()

    def total(self) -> int:
        """How many there are."""
        return len(self._index.table)

    def liveness(self, node: NodeId) -> Liveness:
        return self._index.liveness(node)

    def heartbeat(self, node: NodeId) -> NodeHeartbeat | None:
        """The heartbeat of the node, with its server; None if there is none."""
        return self._index.heartbeat(node)

    def former_subnets(self, node: NodeId) -> Collection[str]:
        """Subnets that its containers may still have addresses of."""
        return self._subnets.former_of(node)

    def foreign_report(self, node: NodeId) -> ForeignReport | None:
        """The last report of a foreign node to this server."""
        return self._foreign_reports.get(node)

    def condition(self, node: NodeId) -> NodeCondition | None:
        return self._index.condition(node)

    def conditions(self) -> Sequence[NodeCondition]:
        return self._index.conditions()

    def count(self, node: NodeId) -> int:
        """How many instances it has that are not over."""
        return sum(record.value.observed.status not in TERMINAL for record in self._instances.on_node(node))

    async def drain_progress(self, node: NodeId) -> AsyncGenerator[int, None]:
        """The number of its instances, now and whenever it changes, until there is none or the drain has
        ended."""
        changed = asyncio.Event()

        def instance_changed(before: InstanceRecord | None, after: InstanceRecord | None) -> None:
            if before is not None and before.value.node == node:
                changed.set()

        stop_nodes = self.listen(lambda other: changed.set() if other == node else None)
        stop_instances = self._instance_table.listen(instance_changed)
        try:
            sent = None
            while True:
                changed.clear()
                left = self.count(node)
                if left != sent:
                    yield left
                    sent = left
                if not left or self.get(node).status is NodeStatus.DRAINED:
                    return
                await changed.wait()
        finally:
            stop_nodes()
            stop_instances()

    def listen(self, changed: NodeChangeCallback) -> Callable[[], None]:
        """Call `changed` whenever the condition of a node changes, also by a missing heartbeat; the result
        ends that."""
        return self._index.listen(changed)

    def notify_overdue(self) -> None:
        """Notify of nodes that have been without a heartbeat for too long. Also happens by itself, in
        time."""
        self._index.notify_overdue()

    # Coming and going

    async def register(self, id: str, hello: NodeHello, *, foreign: bool = False) -> Node:
        """Register a node, with its subnet; a known one is written only if something changed.

        `hello.subnet` is the one it would like, which it gets if it is free; none that overlaps
        `hello.occupied`. Of those it had before, those in `hello.former` are kept back for it, and others for
        a while. Labels count when a node is new; from then on they are the operators'. A node is a member
        under its own id. Raises `AlreadyExists` for a node of the other kind, `ResourcesExhausted` without a
        subnet left.
        """
        node = NodeId(ids.check_id(id))
        if hello.member is not None:
            hello = replace(hello, member=replace(hello.member, node=node, is_server=False))
        await self._reserve_former(node, hello.former)
        record = self._table.get(node)
        while True:
            try:
                if record is None:
                    return await self._add(self._new(node, hello, foreign), hello.subnet, hello.occupied)
                if record.value.is_foreign != foreign:
                    raise errors.AlreadyExists(
                        f"node {node} is registered as one that {_kind(record.value)}; unregister it first"
                    )
                transition = transitions.reregister(
                    record.value,
                    name=hello.name,
                    facts=hello.facts,
                    resources=hello.resources,
                    member=hello.member,
                )
                return await self._renew(record, transition, hello.subnet, hello.occupied)
            except errors.Conflict:
                record = await self._table.read(node)

    def _new(self, node: NodeId, hello: NodeHello, foreign: bool) -> Node:
        now = self._clock.now()
        return Node(
            node,
            hello.name,
            now,
            now,
            NodeStatus.REGISTERING if foreign else NodeStatus.READY,
            facts=hello.facts,
            labels=dict(hello.labels),
            resources=hello.resources,
            is_foreign=foreign,
            member=hello.member,
        )

    async def report(
        self,
        id: str,
        status: NodeStatus,
        *,
        reason: str = "",
        resources: Resources | None = None,
        usage: Resources | None = None,
        instances: Sequence[ReportedInstance] | None = None,
    ) -> Node:
        """A report of a foreign node about itself: a heartbeat, and written if it has changed.

        Fields that are None stay. Usage and instances are kept in memory.
        """
        node = self.get(id)
        if not node.is_foreign:
            raise errors.FailedPrecondition(f"node {node.id} reports by its own session, and by nothing else")
        self.heartbeats.received(node.id)
        if self.heartbeat(node.id) is None:
            await (
                self.heartbeats.publish()
            )  # before anything else is written: without a heartbeat it would be lost again at once

        def change(node: Node) -> NodeTransition | None:
            after = replace(node, status=status, resources=node.resources if resources is None else resources)
            if after == node:
                return None
            after = replace(after, reason=ids.check_display_text(reason, "description"))
            return NodeTransition(after, f"node.{status}", reason)

        node = await self._change(node.id, change, actor=f"node/{node.id}")
        now = self._clock.now()
        before = self._foreign_reports.get(node.id) or ForeignReport(now)
        self._foreign_reports[node.id] = ForeignReport(
            now,
            before.usage if usage is None else usage,
            before.instances if instances is None else tuple(instances),
        )
        return node

    async def unregister(
        self, id: str, *, actor: str, force: bool = False, fence: Expect | None = None
    ) -> None:
        """Forget the node; its subnet is given to others after a while. Refused while it has instances.

        By `force` they are given up at once, and placed elsewhere. A machine that still runs Skerry registers
        again when it connects: stop it first, or revoke its certificate.
        """
        node = self.get(id).id
        while True:
            record = await self._table.read(node)
            if record is None:
                raise index.unknown(id)
            if (count := self.count(node)) and not force:
                raise errors.FailedPrecondition(
                    f"node {node} has {count} instances; drain it first (`skerry node drain`), or use force"
                )
            try:
                await self._remove(record, actor=actor, fence=fence)
            except errors.Conflict:
                continue
            log.info("node.unregistered", node=node, actor=actor, instances=count)
            return

    # Operators

    async def cordon(self, id: str, *, actor: str, reason: str = "") -> Node:
        """It takes nothing new, and keeps what it has."""

        def change(node: Node) -> NodeTransition | None:
            if node.is_cordoned:
                return None
            return NodeTransition(
                replace(node, is_cordoned=True), "node.cordoned", ids.check_display_text(reason, "reason")
            )

        return await self._change(id, change, actor=actor)

    async def uncordon(self, id: str, *, actor: str, fence: Expect | None = None) -> Node:
        """It takes instances again; ends a drain, too."""
        return await self._change(id, transitions.uncordon, actor=actor, fence=fence)

    async def drain(
        self, id: str, *, actor: str, by: float | None = None, fence: Expect | None = None
    ) -> Node:
        """It gives up what it has: in good order until `by` (default: `fleet.drain_s`), then at once."""
        deadline = self._clock.now() + self._settings.drain_s if by is None else by
        if not math.isfinite(deadline):  # would be none in the store, and the drain never end
            raise errors.Invalid("the time for a drain must be a number of seconds", field="within_s")

        def change(node: Node) -> NodeTransition | None:
            if node.is_foreign:
                raise errors.FailedPrecondition(
                    f"node {node.id} takes no orders, so there is nothing to drain"
                )
            if node.drain_by == deadline:
                return None
            status = node.status if node.status is NodeStatus.LOST else NodeStatus.DRAINING
            return NodeTransition(replace(node, drain_by=deadline, status=status), "node.draining")

        return await self._change(id, change, actor=actor, fence=fence)

    async def relabel(self, id: str, labels: Mapping[str, str], *, actor: str) -> Node:
        """Give it these labels, instead of all that it has."""

        def change(node: Node) -> NodeTransition | None:
            after = replace(node, labels=dict(labels))
            return None if after == node else NodeTransition(after, "node.labelled")

        return await self._change(id, change, actor=actor)

    # What time makes of them

    async def update_all(self) -> None:
        """Write what has become of nodes: lost, back, drained, removed.

        Every server does this, with the same result; the second finds it written.
        """
        now = self._clock.now()
        self._unsettled.update(dict.fromkeys(node for node, at in self._deadlines() if at <= now))
        while self._unsettled:
            some = list(islice(self._unsettled, _AT_ONCE))
            for node in some:
                del self._unsettled[node]  # first: it may happen to them again meanwhile
            outcomes = await asyncio.gather(*map(self._update_node, some), return_exceptions=True)
            for node, outcome in zip(some, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    self._unsettled[node] = None
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _update_for_ever(self) -> None:
        await self.ready()
        while True:
            self._wake.clear()
            try:
                await self.update_all()
                wait_s = self._until_next_deadline()
            except errors.Unavailable as error:
                log.warning("nodes.not_settled", error=error.message)
                wait_s = _RETRY_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _update_node(self, node: NodeId) -> None:
        record = self._table.get(node)
        if record is None:
            return
        forget_at = self._forget_at(record.value)
        if forget_at is not None and self._clock.now() >= forget_at:
            await self._forget(record)
        elif self._next_transition(record.value) is not None:
            with suppress(errors.NotFound):  # unregistered meanwhile
                await self._change(node, self._next_transition, actor="skerry")

    def _forget_at(self, node: Node) -> float | None:
        """When a lost foreign node is unregistered; None: not in its present condition."""
        after_s = self._settings.forget_foreign_after_s
        is_absent = node.id in self._index.absent and self.liveness(node.id) is Liveness.LOST
        if not after_s or not is_absent or self.count(node.id):
            return None
        return node.reported_at + after_s  # which is when it was written to be lost

    async def _forget(self, record: Record[Node]) -> None:
        reason = f"it was lost for {self._settings.forget_foreign_after_s:g} s"
        try:
            await self._remove(record, actor="skerry", reason=reason)
        except errors.Conflict:
            return  # it is back, or another server was quicker
        log.info("node.forgotten", node=record.value.id, name=record.value.name, reason=reason)

    def _next_transition(self, node: Node) -> NodeTransition | None:
        return transitions.update_liveness(
            node,
            self.liveness(node.id),
            has_instances=bool(self.count(node.id)),
            now=self._clock.now(),
            lost_after_s=self._settings.lost_after_s,
        )

    def _deadlines(self) -> Iterator[tuple[NodeId, float]]:
        """When a drain ends, and when a node is removed."""
        for node in sorted(self._index.draining | self._index.absent):
            record = self.get(node)
            at = record.drain_by if node in self._index.draining else self._forget_at(record)
            if at is not None:
                yield node, at

    def _until_next_deadline(self) -> float | None:
        first = min((at for _, at in self._deadlines()), default=None)
        return None if first is None else max(0.0, first - self._clock.now())

    # Inside

    async def _remove(
        self, record: Record[Node], *, actor: str, reason: str = "", fence: Expect | None = None
    ) -> None:
        """Unregister the node if it is still as it was, else `Conflict`; its subnets are free later."""
        node = record.value
        ops: list[Op] = [
            self._table.delete(node.id),
            self._events.put(
                "node.unregistered", f"node/{node.id}", actor=actor, reason=reason, name=node.name
            ),
        ]
        if node.subnet:
            lease = await self._store.grant_lease(SUBNET_GRACE_S)
            ops.append(self._subnets.put(node.subnet, node.id, lease))
            ops += [
                self._subnets.put(subnet, node.id, lease, is_former=True)
                for subnet in self._subnets.former_of(node.id)
            ]
        await self._table.commit(ops, [self._table.expect(node.id, record)], fence)

    async def _add(self, node: Node, proposal: str, occupied: Sequence[str]) -> Node:
        own = self._subnets.of(node.id) or ""  # of one that was unregistered a moment ago
        async with self._subnet(node.id, own, proposal, occupied) as (subnet, ops, expect):
            node = replace(node, subnet=subnet)
            event = self._events.put(
                "node.registered", f"node/{node.id}", actor=f"node/{node.id}", name=node.name, subnet=subnet
            )
            revision = await self._table.commit(
                [self._table.put(node.id, node), *ops, event], [self._table.expect(node.id, None), *expect]
            )
            await self._subnets.table.wait_for_change(revision)
        log.info("node.registered", node=node.id, name=node.name, subnet=subnet, foreign=node.is_foreign)
        return node

    async def _renew(
        self, record: Record[Node], transition: NodeTransition | None, proposal: str, occupied: Sequence[str]
    ) -> Node:
        """Write what is new of a known node, and its subnet if that has to be another."""
        node, actor = record.value, f"node/{record.value.id}"
        async with self._subnet(node.id, node.subnet, proposal, occupied) as (subnet, ops, expect):
            is_same = subnet == node.subnet
            if is_same and transition is None:
                return node
            transition = transition or NodeTransition(node, "node.changed", f"its subnet is {subnet}")
            transition = replace(transition, node=replace(transition.node, subnet=subnet))
            write = self._write(transition, actor)
            if is_same:
                ops, expect = (), ()
            await self._table.commit(
                [*self._table.ops(node.id, write), *ops], [self._table.expect(node.id, record), *expect]
            )
            self._log(transition, actor)
            if not is_same:
                await self._subnets.table.sync()
        if not is_same:
            log.info("node.subnet_changed", node=node.id, name=node.name, before=node.subnet, after=subnet)
        return write.value

    @asynccontextmanager
    async def _subnet(
        self, node: NodeId, present: str, proposal: str, occupied: Sequence[str]
    ) -> AsyncIterator[tuple[str, Sequence[Op], Sequence[Expect]]]:
        """The subnet that the node is to have instead of `present`, and what a transaction needs to give it
        that, which the context is for."""
        subnet = self._subnets.claim(node, present, proposal, occupied)
        ops: list[Op] = [self._subnets.put(subnet, node)]
        expect = [self._subnets.expect(subnet)]
        try:
            if present != subnet and self._subnets.of(node) == present:
                ops.append(await self._become_former(node, present))
            yield subnet, ops, expect
        except errors.Conflict:
            # Another server was quicker, with the node or with the subnet; the next try knows of it.
            await self._subnets.table.sync()
            raise
        finally:
            self._subnets.release(subnet)

    async def _become_former(self, node: NodeId, subnet: str) -> Op:
        if len(self._subnets.former_of(node)) >= _MOST_FORMER:
            return self._subnets.delete(subnet)
        return self._subnets.put(subnet, node, await self._store.grant_lease(SUBNET_GRACE_S), is_former=True)

    async def _reserve_former(self, node: NodeId, used: Collection[str]) -> None:
        """Reserve the subnets that the node had before: those in `used` until the node reports otherwise, and
        the others for a while."""
        for subnet, record in self._subnets.former_of(node).items():
            is_used = subnet in used
            if is_used == (record.lease == NO_LEASE):
                continue
            expect = self._subnets.expect(subnet)
            lease = NO_LEASE if is_used else await self._store.grant_lease(SUBNET_GRACE_S)
            with suppress(errors.Conflict):  # another server was quicker
                await self._subnets.table.commit(
                    [self._subnets.put(subnet, node, lease, is_former=True)], [expect]
                )

    async def _change(
        self,
        id: str,
        change: Callable[[Node], NodeTransition | None],
        *,
        actor: str,
        fence: Expect | None = None,
    ) -> Node:
        """Write the transition that `change` makes of the node, if any, and return the node after it."""
        transition: NodeTransition | None = None

        def decide(record: Record[Node]) -> Write[Node] | None:
            nonlocal transition
            transition = change(record.value)
            return None if transition is None else self._write(transition, actor)

        node = await self._table.update(self.get(id).id, decide, missing=index.unknown(id), fence=fence)
        if transition is not None:
            self._log(transition, actor)
        return node

    def _write(self, transition: NodeTransition, actor: str) -> Write[Node]:
        node = replace(transition.node, reported_at=self._clock.now())
        event = self._events.put(
            transition.kind, f"node/{node.id}", actor=actor, reason=transition.reason, name=node.name
        )
        return Write(node, [event])

    def _log(self, transition: NodeTransition, actor: str) -> None:
        node = transition.node
        log.info(
            transition.kind,
            node=node.id,
            name=node.name,
            status=node.status,
            reason=transition.reason,
            actor=actor,
        )

    def _changed(self, node: NodeId) -> None:
        self._unsettled[node] = None
        self._wake.set()
        if self._table.get(node) is None:
            self._foreign_reports.pop(node, None)

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        node = before.value.node if before is not None else None
        if node is not None and node in self._index.draining:
            self._unsettled[node] = None
            self._wake.set()


def _kind(node: Node) -> str:
    return "uses only Kudo's calls" if node.is_foreign else "has a session of its own"
