"""What Kudo's gRPC services need of the control plane; REST's share is `skerry.wire.kudo.keeper`.

`skerry.control` keeps these promises: `Instances`, `Nodes` and `Identity` there are used as they are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from skerry.control.reporting import Outcome
from skerry.model.identity import Caller
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Facts, Node
from skerry.model.orders import Report
from skerry.model.room import NOTHING, Room
from skerry.model.statuses import NodeStatus
from skerry.model.workloads import Instance, Spec


class InstanceKeeper(Protocol):
    """Wishes, which are durable when a call returns; what is known; and what others saw."""

    async def create(
        self, what: Spec | str, *, actor: str, id: str | None = None
    ) -> tuple[Instance, bool]: ...

    async def start(self, id: str, *, actor: str) -> Instance: ...

    async def stop(self, id: str, *, actor: str) -> Instance: ...

    async def destroy(self, id: str, *, actor: str) -> Instance: ...

    def get(self, id: str) -> Instance: ...

    def usage(self, id: str) -> Room: ...

    def watch(self, id: str) -> AsyncGenerator[Instance]:
        """The instance now and after each change; ends when it is over."""
        ...

    async def reported(
        self, node: NodeId | None, reports: Sequence[Report], *, actor: str = ""
    ) -> Sequence[Outcome]:
        """Take what `node` saw of its instances or, if that is None, `actor` of any."""
        ...


class NodeKeeper(Protocol):
    """The nodes of third parties: those that speak only these calls."""

    def get(self, id_or_name: str) -> Node: ...

    async def register(
        self,
        id: str,
        name: str,
        facts: Facts,
        room: Room,
        labels: Mapping[str, str],
        *,
        foreign: bool = False,
    ) -> Node: ...

    async def report(
        self,
        id: str,
        status: NodeStatus,
        *,
        reason: str = "",
        room: Room | None = None,
        usage: Room = NOTHING,
        inventory: Sequence[InstanceId] | None = None,
    ) -> Node: ...

    async def unregister(self, id: str, *, actor: str) -> None: ...


class Certificates(Protocol):
    """Who holds a certificate; raises `Unauthenticated` if it is not one of this cloud's that counts."""

    def caller_from_certificate(self, der: bytes) -> Caller: ...
