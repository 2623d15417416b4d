"""A control plane in memory, without nodes or a store: what Kudo's gRPC services need, as they need it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from msgspec.structs import replace

from skerry.control.instances import report_rules, writer
from skerry.control.instances.report_rules import ReportDisposition, ReportOutcome
from skerry.kit import logs
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, InstanceId, Namespace, NodeId
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import Node, ReportedInstance
from skerry.model.orders import InstanceReport
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus, NodeStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState

NOW = 1_700_000_000.0


class FakeInstances:
    """Instances that are whatever a test makes of them, within the state machine."""

    def __init__(self) -> None:
        self.all: dict[str, Instance] = {}
        self.used: dict[str, Resources] = {}
        self.desired_changes: list[tuple[str, str, str]] = []  # what, id, actor
        self.watched = 0
        self.repeats: set[float | None] = set()  # how often readers wanted to hear of what runs
        self.held = 0  # streams that wait for an instance to be removed
        self.fails: Exception | None = None
        self._watches: dict[str, set[asyncio.Queue[Instance]]] = {}
        self._removed: dict[str, asyncio.Event] = {}

    async def create(
        self,
        what: InstanceSpec | str,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        id: str | None = None,
    ) -> tuple[Instance, bool]:
        assert isinstance(what, InstanceSpec)
        self._maybe_fail()
        if id is not None and id in self.all:
            if self.all[id].spec != what:
                raise errors.AlreadyExists(f"instance {id} exists with another spec")
            return self.all[id], False
        instance = Instance(
            id=InstanceId(id or f"assigned-{len(self.all)}"),
            spec=what,
            created_at=NOW,
            observed=ObservedState(InstanceStatus.SCHEDULING, NOW, "waits for a node"),
            request_id=logs.request_id(),
            namespace=namespace,
        )
        self.desired_changes.append(("create", instance.id, actor))
        self.put(instance)
        return instance, True

    async def check_in(self, namespace: Namespace, id: str) -> None:
        if id not in self.all or self.all[id].namespace != namespace:
            raise writer.unknown_instance(id, namespace)

    async def start(self, id: str, *, actor: str, namespace: Namespace | None = None) -> Instance:
        return self._set_desired(id, DesiredStatus.RUNNING, actor)

    async def stop(self, id: str, *, actor: str, namespace: Namespace | None = None) -> Instance:
        return self._set_desired(id, DesiredStatus.STOPPED, actor)

    async def destroy(self, id: str, *, actor: str, namespace: Namespace | None = None) -> Instance:
        return self._set_desired(id, DesiredStatus.DESTROYED, actor)

    def get(self, id: str) -> Instance:
        try:
            return self.all[id]
        except KeyError:
            raise errors.NotFound(f"there is no instance {id!r}") from None

    def usage(self, id: str) -> Resources:
        return self.used.get(id, NO_RESOURCES)

    async def watch(self, id: str, *, repeat_s: float | None = None) -> AsyncGenerator[Instance]:
        self.repeats.add(repeat_s)
        queue: asyncio.Queue[Instance] = asyncio.Queue()
        queue.put_nowait(self.get(id))
        self._watches.setdefault(id, set()).add(queue)
        self.watched += 1
        try:
            while True:
                latest = await queue.get()
                yield latest
                if latest.observed.status in TERMINAL:
                    return
        finally:
            self._watches[id].discard(queue)
            self.watched -= 1

    async def removed(self, id: str) -> None:
        self.held += 1
        try:
            await self._removed.setdefault(id, asyncio.Event()).wait()
        finally:
            self.held -= 1

    def remove(self, id: str) -> None:
        del self.all[id]
        self._removed.setdefault(id, asyncio.Event()).set()

    async def reported(
        self, node: NodeId | None, reports: Sequence[InstanceReport], *, actor: str = ""
    ) -> Sequence[ReportOutcome]:
        self._maybe_fail()
        outcomes = []
        for report in reports:
            outcome, step = report_rules.evaluate_report(
                self.all.get(report.instance), node, report, NOW, actor=actor
            )
            if outcome.disposition in (ReportDisposition.APPLIED, ReportDisposition.REPEATED):
                self.used[report.instance] = report.usage
            if step is not None:
                self.put(step.after)
            outcomes.append(outcome)
        return outcomes

    def put(self, instance: Instance) -> None:
        self.all[instance.id] = instance
        for queue in self._watches.get(instance.id, ()):
            queue.put_nowait(instance)

    def become(
        self, id: str, *statuses: InstanceStatus, reason: str = "", exit_code: int | None = None
    ) -> None:
        for status in statuses:
            self.put(self.all[id].become(status, at=NOW, reason=reason, actor="skerry", exit_code=exit_code))

    def bind(self, id: str, node: str) -> None:
        self.put(replace(self.all[id], node=NodeId(node), ip="10.64.0.2", restarts=3))
        self.become(id, InstanceStatus.SCHEDULED)

    def _set_desired(self, id: str, desired: DesiredStatus, actor: str) -> Instance:
        self._maybe_fail()
        instance = self.get(id).with_desired(desired)
        self.desired_changes.append((desired.lower(), id, actor))
        self.put(instance)
        return instance

    def _maybe_fail(self) -> None:
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error


class FakeNodes:
    """Nodes as they registered and reported."""

    def __init__(self) -> None:
        self.all: dict[str, Node] = {}
        self.usage: dict[str, Resources | None] = {}
        self.inventories: dict[str, tuple[str, ...] | None] = {}
        self.reports: list[str] = []
        self.unregistered: list[tuple[str, str]] = []
        self.fails: Exception | None = None

    def get(self, id_or_name: str) -> Node:
        if id_or_name in self.all:
            return self.all[id_or_name]
        named = [node for node in self.all.values() if node.name == id_or_name]
        if len(named) > 1:
            raise errors.FailedPrecondition(f"{len(named)} nodes are called {id_or_name!r}")
        if not named:
            raise errors.NotFound(f"there is no node {id_or_name!r}")
        return named[0]

    async def register(self, id: str, hello: NodeHello, *, foreign: bool = False) -> Node:
        self._maybe_fail()
        known = self.all.get(id)
        if known is None:
            subnet = f"10.64.{len(self.all)}.0/24"
            known = Node(
                NodeId(id), hello.name, NOW, NOW, is_foreign=foreign, subnet=subnet, labels=hello.labels
            )
        if known.is_foreign != foreign:
            raise errors.AlreadyExists(f"node {id} is registered as one that has a session of its own")
        self.all[id] = replace(known, name=hello.name, facts=hello.facts, resources=hello.resources)
        return self.all[id]

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
        self._maybe_fail()
        node = self.all[id]
        self.all[id] = replace(
            node, status=status, reason=reason, resources=node.resources if resources is None else resources
        )
        self.usage[id] = usage
        self.inventories[id] = None if instances is None else tuple(one.id for one in instances)
        self.reports.append(id)
        return self.all[id]

    async def unregister(self, id: str, *, actor: str) -> None:
        self._maybe_fail()
        del self.all[id]
        self.unregistered.append((id, actor))

    def add(self, id: str, **fields: object) -> None:
        """A node that was there before the test."""
        self.all[id] = replace(Node(NodeId(id), id, NOW, NOW), **fields)

    def _maybe_fail(self) -> None:
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error
