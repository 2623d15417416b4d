"""What this room needs of the control plane, so that it can be served and tested without a whole one.

`skerry.control` keeps these promises: `WorkloadRegistry`, `InstanceRegistry`, `NodeRegistry` and
`NodeSessions` there are used as they are. A wish is durable when a call returns; reads come from memory and
wait for nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from skerry.control.events.log import StoredEvent
from skerry.control.paging import ListPage
from skerry.model.ids import DEFAULT_NAMESPACE, InstanceId, Namespace, NodeId, WorkloadId
from skerry.model.nodes import ForeignReport, Liveness, Node
from skerry.model.resources import Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.streams import StreamRequest
from skerry.model.workloads import Instance, InstanceSpec, RolloutStrategy, Workload, WorkloadKind
from skerry.schedule.results import NodeFeasibility


class WorkloadOperations(Protocol):
    """Templates, by id or by name; without a namespace, by an id of any or a name of the default one."""

    async def create(
        self,
        spec: InstanceSpec,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        id: str | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Workload, bool]: ...

    def get(self, id_or_name: str, namespace: Namespace | None = None) -> Workload: ...

    def revision(self, id_or_name: str, namespace: Namespace | None = None) -> int: ...

    def list(
        self,
        *,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
        namespace: Namespace | None = None,
    ) -> ListPage[Workload]: ...

    async def change(
        self,
        id_or_name: str,
        merge: Callable[[InstanceSpec], InstanceSpec],
        *,
        actor: str,
        namespace: Namespace | None = None,
        if_match: int | None = None,
        rollout: RolloutStrategy = RolloutStrategy.NONE,
    ) -> Workload: ...

    async def delete(
        self, id_or_name: str, *, actor: str, namespace: Namespace | None = None, cascade: bool = True
    ) -> Workload: ...


class InstanceOperations(Protocol):
    """Copies of workloads, or of specs of their own."""

    async def create(
        self,
        what: InstanceSpec | str,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        id: str | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Instance, bool]: ...

    async def start(self, id: str, *, actor: str) -> Instance: ...

    async def stop(self, id: str, *, actor: str) -> Instance: ...

    async def destroy(self, id: str, *, actor: str, by_admin: bool = False) -> Instance: ...

    async def change(
        self,
        id: str,
        *,
        actor: str,
        desired: DesiredStatus | None = None,
        merge: Callable[[InstanceSpec], InstanceSpec] | None = None,
        workload: str | None = None,
        if_match: int | None = None,
    ) -> Instance: ...

    def get(self, id: str) -> Instance: ...

    async def read(self, id: str) -> Instance: ...

    async def check_in(self, namespace: Namespace, id: str) -> None: ...

    def revision(self, id: str) -> int: ...

    def usage(self, id: str) -> Resources: ...

    def list(
        self,
        *,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
        kind: WorkloadKind | None = None,
        states: frozenset[InstanceStatus] = frozenset(),
        node: NodeId | None = None,
        workload: WorkloadId | None = None,
        name: str | None = None,
        namespace: Namespace | None = None,
    ) -> ListPage[Instance]: ...

    async def events(self, id: str) -> Sequence[StoredEvent]: ...

    def explain(self, id: str) -> Sequence[NodeFeasibility]: ...

    def watch(self, id: str) -> AsyncGenerator[Instance]: ...


class NodeOperations(Protocol):
    """The machines, by id or by a name that only one has."""

    def get(self, id_or_name: str) -> Node: ...

    def list(self) -> Sequence[Node]: ...

    def liveness(self, node: NodeId) -> Liveness: ...

    def foreign_report(self, node: NodeId) -> ForeignReport | None: ...

    async def cordon(self, id: str, *, actor: str, reason: str = "") -> Node: ...

    async def uncordon(self, id: str, *, actor: str) -> Node: ...

    async def drain(self, id: str, *, actor: str, by: float | None = None) -> Node: ...

    async def relabel(self, id: str, labels: Mapping[str, str], *, actor: str) -> Node: ...

    async def unregister(self, id: str, *, actor: str, force: bool = False) -> None: ...


class InstanceTunnel(Protocol):
    """Our end of a way to an instance on its node; the frames are `skerry.model.streams`'."""

    async def receive(self) -> bytes | None: ...

    async def send(self, frame: bytes) -> None: ...

    async def end(self) -> None: ...


class InstanceTunnels(Protocol):
    """The way to nodes that are connected here."""

    def open_tunnel(
        self, node: NodeId, instance: InstanceId, ask: StreamRequest
    ) -> AbstractAsyncContextManager[InstanceTunnel]: ...
