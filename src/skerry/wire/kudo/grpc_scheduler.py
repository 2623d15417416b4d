"""Between the messages of the newer document, the scheduler's, and what they say or ask for.

The document has no CRASHED. It is told as FAILED with a description that begins `CRASHED:`, and for those who
know our fields `reason` has the word alone.
"""

from __future__ import annotations

from typing import Final

from skerry.model import ids
from skerry.model.ports import PortMapping
from skerry.model.room import NOTHING, Room
from skerry.model.statuses import of_node
from skerry.model.workloads import Instance, Spec
from skerry.wire.cells.messages import contract_fields
from skerry.wire.kudo.grpc_numbers import SCHEDULER
from skerry.wire.kudo.grpc_said import NodeSaid, check_type, inventory_of, line_of, room_of
from skerry.wire.proto import kudo_scheduler_pb2 as pb

_FIELDS: Final = {
    "environment": "environnement",
    "cpu": "resource.limit.cpu",
    "memory": "resource.limit.memory",
    "disk": "resource.limit.disk",
}


def spec_of(told: pb.Instance) -> Spec:
    """What an instance is to run; its status, its address and what it uses are not for a client to say."""
    check_type(told.type)
    with contract_fields(_FIELDS):
        return Spec(
            name=told.name,
            uri=told.uri,
            environment=tuple(told.environnement),
            room=room_of(told.resource.limit),
            ports=tuple(PortMapping(port.source, port.destination) for port in told.ports),
        )


def node_said(told: pb.NodeStatus) -> NodeSaid:
    has = told.resource.HasField
    return NodeSaid(
        id=ids.check_id(told.id),
        status=of_node(SCHEDULER.read(told.status)),
        description=line_of(told.statusDescription),
        room=room_of(told.resource.limit) if has("limit") else None,
        usage=room_of(told.resource.usage) if has("usage") else NOTHING,
        inventory=inventory_of(told.instances, SCHEDULER),
    )


def told_status(instance: Instance, usage: Room) -> pb.InstanceStatus:
    """An instance as it is now."""
    seen = instance.observed
    reason = SCHEDULER.reason(seen.status)
    return pb.InstanceStatus(
        id=instance.id,
        status=SCHEDULER.told(seen.status).value,
        statusDescription=f"{reason}: {seen.reason}" if reason else seen.reason,
        resource=pb.Resource(limit=_told_room(instance.spec.room), usage=_told_room(usage)),
        reason=reason,
        exit_code=seen.exit_code,
    )


def _told_room(room: Room) -> pb.ResourceSummary:
    return pb.ResourceSummary(cpu=room.cpu, memory=room.memory, disk=room.disk)
