"""From the messages of the older document, the controller's, to what they say. See `grpc_said`."""

from __future__ import annotations

from skerry.model import ids
from skerry.model.ids import InstanceId
from skerry.model.room import NOTHING
from skerry.model.statuses import of_node
from skerry.wire.kudo.grpc_numbers import CONTROLLER
from skerry.wire.kudo.grpc_said import InstanceSaid, NodeSaid, inventory_of, line_of, room_of
from skerry.wire.proto import kudo_controller_pb2 as pb


def node_said(told: pb.NodeStatus) -> NodeSaid:
    has = told.resource.HasField
    return NodeSaid(
        id=ids.check_id(told.id),
        status=of_node(CONTROLLER.read(told.status)),
        description=line_of(told.description),
        room=room_of(told.resource.max) if has("max") else None,
        usage=room_of(told.resource.usage) if has("usage") else NOTHING,
        inventory=inventory_of(told.instances, CONTROLLER),
    )


def instance_said(told: pb.InstanceStatus) -> InstanceSaid:
    return InstanceSaid(
        id=InstanceId(ids.check_id(told.id)),
        status=CONTROLLER.read(told.status),
        description=line_of(told.description),
        usage=room_of(told.resource.usage) if told.resource.HasField("usage") else None,
        exit_code=told.exit_code if told.HasField("exit_code") else None,
    )
