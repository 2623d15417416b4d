"""What somebody says of a node or of an instance, whichever document's words it was said in.

`grpc_controller_messages` and `grpc_scheduler_messages` read it from their messages, with what they share
here; `grpc_reports` takes it from there. Pure and total: a message gives something said, or `Invalid` with
what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import InstanceId
from skerry.model.nodes import ReportedInstance
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.statuses import InstanceStatus, NodeStatus
from skerry.transport.proto import kudo_controller_pb2, kudo_scheduler_pb2

_MAX_LINE: Final = 256
_MAX_INVENTORY: Final = 10_000


class ReportedNode(msgspec.Struct, frozen=True):
    """What a node says of itself."""

    id: str
    status: NodeStatus
    description: str = ""
    resources: Resources | None = None  # None: nothing is said of it, and it stays
    usage: Resources | None = None  # likewise
    instances: tuple[ReportedInstance, ...] | None = None  # all that it has; None: nothing is said of it


class ReportedInstanceStatus(msgspec.Struct, frozen=True):
    """What is said of an instance."""

    id: InstanceId
    status: InstanceStatus
    description: str = ""
    usage: Resources | None = None  # None: nothing is said of it, and it stays
    exit_code: int | None = None


def decode_resources(
    message: kudo_controller_pb2.ResourceSummary | kudo_scheduler_pb2.ResourceSummary,
) -> Resources:
    return Resources(Millicores(message.cpu), Megabytes(message.memory), Gigabytes(message.disk))


def check_type(number: int) -> None:
    """Both documents know one type, and give it the same number."""
    if number != kudo_scheduler_pb2.CONTAINER:
        raise errors.Invalid(f"there is no type {number}; the only one is CONTAINER (0)", field="type")


def decode_inventory(instances: Iterable[ReportedInstance]) -> tuple[ReportedInstance, ...] | None:
    """Which instances a node has, each once; None if it names none, as that is what it says, too, if it says
    nothing."""
    found: dict[InstanceId, ReportedInstance] = {}
    for instance in instances:
        found[instance.id] = instance
        if len(found) > _MAX_INVENTORY:
            raise errors.Invalid(f"a node tells of at most {_MAX_INVENTORY} instances", field="instances")
    return tuple(found.values()) or None


def reported(
    message: kudo_controller_pb2.Instance | kudo_scheduler_pb2.Instance,
    status: InstanceStatus,
    limit: Resources,
) -> ReportedInstance:
    """One of them, whose status and limit its document writes in its own way."""
    check_type(message.type)
    return ReportedInstance(
        InstanceId(ids.check_id(message.id, "instances.id")),
        single_line(message.name),
        status,
        single_line(message.uri),
        limit,
        decode_resources(message.resource.usage),
    )


def single_line(text: str) -> str:
    """A text for people as one line, cut to size: how it is put is no reason to refuse what it is about."""
    words = "".join(letter if letter.isprintable() else " " for letter in text).split()
    return " ".join(words)[:_MAX_LINE]
