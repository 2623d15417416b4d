"""Translates messages of the newer document, `scheduler.proto`.

The document has no CRASHED: it is sent as FAILED with a description that begins with `CRASHED:`, and our own
field `reason` has the word alone.
"""

from __future__ import annotations

from typing import Final

from skerry.model import ids
from skerry.model.images import ImageAccess
from skerry.model.ports import PortMapping
from skerry.model.resources import Resources
from skerry.model.statuses import of_node
from skerry.model.workloads import Instance, InstanceSpec
from skerry.transport.proto import kudo_scheduler_pb2 as pb
from skerry.wire.field_names import contract_fields
from skerry.wire.kudo.grpc_reported import (
    ReportedNode,
    check_type,
    decode_inventory,
    decode_resources,
    reported,
    single_line,
)
from skerry.wire.kudo.grpc_status_numbers import SCHEDULER
from skerry.wire.spec_documents import generated_name, grant_image_access

_FIELDS: Final = {
    "environment": "environnement",
    "cpu": "resource.limit.cpu",
    "memory": "resource.limit.memory",
    "disk": "resource.limit.disk",
}


def decode_spec(message: pb.Instance, caller_access: ImageAccess, seed: str = "") -> InstanceSpec:
    """The spec of an instance, for a caller with the access `caller_access`; status, address and usage in the
    message are ignored. Without a name it gets one from its id or, without that, from `seed`."""
    check_type(message.type)
    with contract_fields(_FIELDS):
        return InstanceSpec(
            name=message.name or generated_name(message.uri, message.id or seed),
            uri=message.uri,
            environment=tuple(message.environnement),
            resources=decode_resources(message.resource.limit),
            ports=tuple(PortMapping(port.source, port.destination) for port in message.ports),
            granted_access=grant_image_access(message.uri, caller_access),
        )


def reported_node(message: pb.NodeStatus) -> ReportedNode:
    has = message.resource.HasField
    return ReportedNode(
        id=ids.check_id(message.id),
        status=of_node(SCHEDULER.read(message.status)),
        description=single_line(message.statusDescription),
        resources=decode_resources(message.resource.limit) if has("limit") else None,
        usage=decode_resources(message.resource.usage) if has("usage") else None,
        instances=decode_inventory(
            reported(one, SCHEDULER.read(one.status), decode_resources(one.resource.limit))
            for one in message.instances
        ),
    )


def encode_status(instance: Instance, usage: Resources) -> pb.InstanceStatus:
    """The status message of an instance."""
    seen = instance.observed
    reason = SCHEDULER.reason(seen.status)
    return pb.InstanceStatus(
        id=instance.id,
        status=SCHEDULER.encoded_as(seen.status).value,
        statusDescription=f"{reason}: {seen.reason}" if reason else seen.reason,
        resource=pb.Resource(
            limit=_encode_resources(instance.spec.resources), usage=_encode_resources(usage)
        ),
        reason=reason,
        exit_code=seen.exit_code,
    )


def _encode_resources(resources: Resources) -> pb.ResourceSummary:
    return pb.ResourceSummary(cpu=resources.cpu, memory=resources.memory, disk=resources.disk)
