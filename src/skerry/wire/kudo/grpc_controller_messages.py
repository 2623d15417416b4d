"""Decodes messages of the older document, `controller.proto`, to reports. See `grpc_reported`."""

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


def reported_node(message: pb.NodeStatus) -> ReportedNode:
    has = message.resource.HasField
    return ReportedNode(
        id=ids.check_id(message.id),
        status=of_node(CONTROLLER.read(message.status)),
        description=single_line(message.description),
        resources=decode_resources(message.resource.max) if has("max") else None,
        usage=decode_resources(message.resource.usage) if has("usage") else None,
        instances=decode_inventory(
            reported(one, CONTROLLER.read(one.status), decode_resources(one.resource.max))
            for one in message.instances
        ),
    )


def reported_instance(message: pb.InstanceStatus) -> ReportedInstanceStatus:
    return ReportedInstanceStatus(
        id=InstanceId(ids.check_id(message.id)),
        status=CONTROLLER.read(message.status),
        description=single_line(message.description),
        usage=decode_resources(message.resource.usage) if message.resource.HasField("usage") else None,
        exit_code=message.exit_code if message.HasField("exit_code") else None,
    )
