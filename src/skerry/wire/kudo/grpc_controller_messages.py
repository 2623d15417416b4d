"""From the messages of the older document, the controller's, to what they say. See `grpc_reported`."""

from __future__ import annotations

from skerry.model import ids
from skerry.model.ids import InstanceId
from skerry.model.statuses import of_node
from skerry.transport.proto import kudo_controller_pb2 as pb
from skerry.wire.kudo.grpc_reported import (
    ReportedInstanceStatus,
    ReportedNode,
    decode_inventory,
    decode_resources,
    reported,
    single_line,
)
from skerry.wire.kudo.grpc_status_numbers import CONTROLLER


def reported_node(told: pb.NodeStatus) -> ReportedNode:
    has = told.resource.HasField
    return ReportedNode(
        id=ids.check_id(told.id),
        status=of_node(CONTROLLER.read(told.status)),
        description=single_line(told.description),
        resources=decode_resources(told.resource.max) if has("max") else None,
        usage=decode_resources(told.resource.usage) if has("usage") else None,
        instances=decode_inventory(
            reported(one, CONTROLLER.read(one.status), decode_resources(one.resource.max))
            for one in told.instances
        ),
    )


def reported_instance(told: pb.InstanceStatus) -> ReportedInstanceStatus:
    return ReportedInstanceStatus(
        id=InstanceId(ids.check_id(told.id)),
        status=CONTROLLER.read(told.status),
        description=single_line(told.description),
        usage=decode_resources(told.resource.usage) if told.resource.HasField("usage") else None,
        exit_code=told.exit_code if told.HasField("exit_code") else None,
    )
