"""Interfaces of the control plane that Kudo's gRPC services use.

`InstanceRegistry`, `NodeRegistry` and `Authenticator` in `skerry.control` implement them; tests have fakes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from skerry.control.instances.report_rules import ReportOutcome
from skerry.model.callers import Caller
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, NodeId
from skerry.model.node_messages import NodeHello
from skerry.model.nodes import Node, ReportedInstance
from skerry.model.orders import InstanceReport
from skerry.model.resources import Resources
from skerry.model.statuses import NodeStatus
from skerry.model.workloads import Instance, InstanceSpec


class InstanceReportPort(Protocol):
    """Requests, which are durable when a call returns; instances as they are known; and reports."""

    async def create(
        self,
        what: InstanceSpec | str,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        id: str | None = None,
    ) -> tuple[Instance, bool]: ...

    async def check_in(self, namespace: Namespace, id: str) -> None:
        """Raise `NotFound` unless it is in that namespace."""
        ...

    async def start(self, id: str, *, actor: str, namespace: Namespace | None = None) -> Instance: ...

    async def stop(self, id: str, *, actor: str, namespace: Namespace | None = None) -> Instance: ...

    async def destroy(self, id: str, *, actor: str, namespace: Namespace | None = None) -> Instance: ...

    def get(self, id: str) -> Instance: ...

    def usage(self, id: str) -> Resources: ...

    def watch(self, id: str, *, repeat_s: float | None = None) -> AsyncGenerator[Instance]:
        """The instance now, after each change, and while RUNNING every `repeat_s`; ends with a terminal
        status."""
        ...

    async def removed(self, id: str) -> None:
        """Wait until the instance is removed."""
        ...

    async def reported(
        self, node: NodeId | None, reports: Sequence[InstanceReport], *, actor: str = ""
    ) -> Sequence[ReportOutcome]:
        """Process reports of `node` about its instances or, if it is None, of `actor` about any."""
        ...


class NodeReportPort(Protocol):
    """Foreign nodes: those that use only these calls."""

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
    """The caller of a certificate; raises `Unauthenticated` unless it is a valid one of this cloud."""

    def caller_from_certificate(self, der: bytes) -> Caller: ...
