"""What this room needs of the control plane, so that it can be served and tested without a whole one.

`skerry.control` keeps these promises: `Workloads`, `Instances`, `Nodes` and `Sessions` there are used as they
are. A wish is durable when a call returns; reads come from memory and wait for nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from skerry.control.events import Told
from skerry.control.listing import Page
from skerry.model.ids import DEFAULT_NAMESPACE, InstanceId, Namespace, NodeId, WorkloadId
from skerry.model.nodes import Liveness, Node
from skerry.model.room import Room
from skerry.model.statuses import Desired, Status
from skerry.model.tunnels import Ask
from skerry.model.workloads import Instance, Kind, Rollout, Spec, Workload
from skerry.schedule.answers import Verdict


class Workloads(Protocol):
    """Templates, by id or by name; without a namespace, by an id of any or a name of the default one."""

    async def create(
        self,
        spec: Spec,
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
    ) -> Page[Workload]: ...

    async def change(
        self,
        id_or_name: str,
        merge: Callable[[Spec], Spec],
        *,
        actor: str,
        namespace: Namespace | None = None,
        if_match: int | None = None,
        rollout: Rollout = Rollout.NONE,
    ) -> Workload: ...

    async def delete(
        self, id_or_name: str, *, actor: str, namespace: Namespace | None = None, cascade: bool = True
    ) -> Workload: ...


class Instances(Protocol):
    """Copies of workloads, or of specs of their own."""

    async def create(
        self,
        what: Spec | str,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        id: str | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Instance, bool]: ...

    async def start(self, id: str, *, actor: str) -> Instance: ...

    async def stop(self, id: str, *, actor: str) -> Instance: ...

    async def destroy(self, id: str, *, actor: str) -> Instance: ...

    async def change(
        self,
        id: str,
        *,
        actor: str,
        desired: Desired | None = None,
        merge: Callable[[Spec], Spec] | None = None,
        workload: str | None = None,
        if_match: int | None = None,
    ) -> Instance: ...

    def get(self, id: str) -> Instance: ...

    async def check_in(self, namespace: Namespace, id: str) -> None: ...

    def revision(self, id: str) -> int: ...

    def usage(self, id: str) -> Room: ...

    def list(
        self,
        *,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
        kind: Kind | None = None,
        states: frozenset[Status] = frozenset(),
        node: NodeId | None = None,
        workload: WorkloadId | None = None,
        name: str | None = None,
        namespace: Namespace | None = None,
    ) -> Page[Instance]: ...

    async def events(self, id: str) -> Sequence[Told]: ...

    def explain(self, id: str) -> Sequence[Verdict]: ...

    def watch(self, id: str) -> AsyncGenerator[Instance]: ...


class Nodes(Protocol):
    """The machines, by id or by a name that only one has."""

    def get(self, id_or_name: str) -> Node: ...

    def list(self) -> Sequence[Node]: ...

    def liveness(self, node: NodeId) -> Liveness: ...

    async def cordon(self, id: str, *, actor: str, reason: str = "") -> Node: ...

    async def uncordon(self, id: str, *, actor: str) -> Node: ...

    async def drain(self, id: str, *, actor: str, by: float | None = None) -> Node: ...

    async def relabel(self, id: str, labels: Mapping[str, str], *, actor: str) -> Node: ...

    async def unregister(self, id: str, *, actor: str, force: bool = False) -> None: ...


class Tunnel(Protocol):
    """Our end of a way to an instance on its node; the frames are `skerry.model.tunnels`'."""

    async def receive(self) -> bytes | None: ...

    async def send(self, frame: bytes) -> None: ...

    async def end(self) -> None: ...


class Tunnels(Protocol):
    """The way to nodes that are connected here."""

    def open_tunnel(
        self, node: NodeId, instance: InstanceId, ask: Ask
    ) -> AbstractAsyncContextManager[Tunnel]: ...
