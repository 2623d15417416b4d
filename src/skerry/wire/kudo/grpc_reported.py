"""Reports about nodes and instances, independent of the document they came in.

`grpc_controller_messages` and `grpc_scheduler_messages` decode their messages to them, with the functions
here; `grpc_reports` processes them. Pure and total: a message gives a report, or `Invalid`.
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
    """A report of a node about itself."""

    id: str
    status: NodeStatus
    description: str = ""
    resources: Resources | None = None  # None: not reported, and unchanged
    usage: Resources | None = None  # likewise
    instances: tuple[ReportedInstance, ...] | None = None  # all that it has; None: not reported


class ReportedInstanceStatus(msgspec.Struct, frozen=True):
    """A report about an instance."""

    id: InstanceId
    status: InstanceStatus
    description: str = ""
    usage: Resources | None = None  # None: not reported, and unchanged
    exit_code: int | None = None


def decode_resources(
    message: kudo_controller_pb2.ResourceSummary | kudo_scheduler_pb2.ResourceSummary,
) -> Resources:
    return Resources(Millicores(message.cpu), Megabytes(message.memory), Gigabytes(message.disk))


def check_type(number: int) -> None:
    """Both documents have one type, with the same number."""
    if number != kudo_scheduler_pb2.CONTAINER:
        raise errors.Invalid(f"there is no type {number}; the only one is CONTAINER (0)", field="type")


def decode_inventory(instances: Iterable[ReportedInstance]) -> tuple[ReportedInstance, ...] | None:
    """The instances of a node, each once; None if it names none, because an empty list and none are the same
    in proto3."""
    found: dict[InstanceId, ReportedInstance] = {}
    for instance in instances:
        found[instance.id] = instance
        if len(found) > _MAX_INVENTORY:
            raise errors.Invalid(f"a node reports at most {_MAX_INVENTORY} instances", field="instances")
    return tuple(found.values()) or None


def reported(
    message: kudo_controller_pb2.Instance | kudo_scheduler_pb2.Instance,
    status: InstanceStatus,
    limit: Resources,
) -> ReportedInstance:
    """One of them; `status` and `limit` are decoded by the caller, because the documents differ."""
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
    """A text for people as one line, cut to the maximum length instead of refused."""
    words = "".join(letter if letter.isprintable() else " " for letter in text).split()
    return " ".join(words)[:_MAX_LINE]
