"""Processes all reports: of the older document's single calls and of the newer one's stream.

A report is also a heartbeat. The end of a stream means nothing here: `skerry.control.nodes.registry` decides
about liveness. A reported status must be able to follow the last one. Messages are decoded in
`grpc_reported`.
"""

from __future__ import annotations

from typing import Final

from skerry.control.instances.report_rules import ReportDisposition
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.callers import Caller, Role
from skerry.model.ids import NodeId
from skerry.model.nodes import Node
from skerry.model.orders import InstanceReport
from skerry.wire.kudo.grpc_ports import InstanceReportPort, NodeReportPort
from skerry.wire.kudo.grpc_registration import check_acts_for
from skerry.wire.kudo.grpc_reported import ReportedInstanceStatus, ReportedNode

_TAKEN: Final = frozenset({ReportDisposition.APPLIED, ReportDisposition.REPEATED})


class ReportHandler:
    """Processes reports about nodes and instances from callers that may send them."""

    def __init__(self, nodes: NodeReportPort, instances: InstanceReportPort, clock: Clock) -> None:
        self._nodes = nodes
        self._instances = instances
        self._clock = clock

    async def node(self, reported: ReportedNode, caller: Caller) -> None:
        check_acts_for(caller, reported.id)
        if find_node(self._nodes, reported.id) is None:
            raise errors.NotFound(
                f"there is no node {reported.id!r}; register it first (NodeService.Register)"
            )
        await self._nodes.report(
            reported.id,
            reported.status,
            reason=reported.description,
            resources=reported.resources,
            usage=reported.usage,
            instances=reported.instances,
        )

    async def instance(self, reported: ReportedInstanceStatus, caller: Caller) -> None:
        known = self._instances.get(reported.id)
        if caller.role is Role.NODE and known.node != caller.node:
            raise errors.Forbidden(f"instance {reported.id} is not on node {caller.node}")
        # What is not reported is unchanged.
        report = InstanceReport(
            instance=reported.id,
            generation=known.generation,
            status=reported.status,
            at=self._clock.now(),
            reason=reported.description,
            exit_code=reported.exit_code,
            restarts=known.restarts,
            ip=known.ip,
            usage=self._instances.usage(reported.id) if reported.usage is None else reported.usage,
        )
        node = NodeId(caller.node) if caller.role is Role.NODE else None
        [outcome] = await self._instances.reported(node, [report], actor=caller.name)
        if (
            outcome.disposition not in _TAKEN
            and self._instances.get(reported.id).observed.status is not reported.status
        ):
            raise errors.FailedPrecondition(outcome.message)


def find_node(nodes: NodeReportPort, id: str) -> Node | None:
    """The node of exactly this id; names are not accepted."""
    try:
        node = nodes.get(id)
    except (errors.NotFound, errors.FailedPrecondition):  # the latter: several have it as their name
        return None
    return node if node.id == id else None
