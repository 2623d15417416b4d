"""What Kudo's gRPC services need of the control plane.

`skerry.control` keeps these promises: `InstanceRegistry`, `NodeRegistry` and `Authenticator` there are used
as they are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from skerry.control.instances.report_rules import ReportOutcome
from skerry.model.callers import Caller
from skerry.model.ids import NodeId
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import Node, ReportedInstance
from skerry.model.orders import InstanceReport
from skerry.model.resources import Resources
from skerry.model.statuses import NodeStatus
from skerry.model.workloads import Instance, InstanceSpec


class InstanceReportPort(Protocol):
    """Wishes, which are durable when a call returns; what is known; and what others saw."""

    async def create(
        self, what: InstanceSpec | str, *, actor: str, id: str | None = None
    ) -> tuple[Instance, bool]: ...

    async def start(self, id: str, *, actor: str) -> Instance: ...

    async def stop(self, id: str, *, actor: str) -> Instance: ...

    async def destroy(self, id: str, *, actor: str) -> Instance: ...

    def get(self, id: str) -> Instance: ...

    def usage(self, id: str) -> Resources: ...

    def watch(self, id: str, *, repeat_s: float | None = None) -> AsyncGenerator[Instance]:
        """The instance now, after each change, and while RUNNING every `repeat_s`; ends when it is over."""
        ...

    async def removed(self, id: str) -> None:
        """Wait until there is no such instance any more."""
        ...

    async def reported(
        self, node: NodeId | None, reports: Sequence[InstanceReport], *, actor: str = ""
    ) -> Sequence[ReportOutcome]:
        """Take what `node` saw of its instances or, if that is None, `actor` of any."""
        ...


class NodeReportPort(Protocol):
    """The nodes of third parties: those that speak only these calls."""

    def get(self, id_or_name: str) -> Node: ...

    async def register(self, id: str, hello: NodeHello, *, foreign: bool = False) -> Node: ...

    async def report(
        self,
        id: str,
        status: NodeStatus,
        *,
        reason: str = "",
        resources: Resources | None = None,
        usage: Resources | None = None,
        instances: Sequence[ReportedInstance] | None = None,
    ) -> Node: ...

    async def unregister(self, id: str, *, actor: str) -> None: ...


class CertificateLookup(Protocol):
    """Who holds a certificate; raises `Unauthenticated` if it is not one of this cloud's that counts."""

    def caller_from_certificate(self, der: bytes) -> Caller: ...
