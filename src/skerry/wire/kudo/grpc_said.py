"""What somebody says of a node or of an instance, whichever document's words it was said in.

`grpc_controller` and `grpc_scheduler` read it from their messages, with what they share here; `grpc_reports`
takes it from there. Pure and total: a message gives something said, or `Invalid` with what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import InstanceId
from skerry.model.room import NOTHING, Gigabytes, Megabytes, Millicores, Room
from skerry.model.statuses import NodeStatus, Status
from skerry.wire.kudo.grpc_numbers import Numbers
from skerry.wire.proto import kudo_controller_pb2, kudo_scheduler_pb2

_MAX_LINE: Final = 256


class NodeSaid(msgspec.Struct, frozen=True):
    """What a node says of itself."""

    id: str
    status: NodeStatus
    description: str = ""
    room: Room | None = None  # None: nothing is said of it, and it stays
    usage: Room = NOTHING
    inventory: tuple[InstanceId, ...] | None = None  # all that it has; None: nothing is said of it


class InstanceSaid(msgspec.Struct, frozen=True):
    """What is said of an instance."""

    id: InstanceId
    status: Status
    description: str = ""
    usage: Room | None = None  # None: nothing is said of it, and it stays
    exit_code: int | None = None


def room_of(told: kudo_controller_pb2.ResourceSummary | kudo_scheduler_pb2.ResourceSummary) -> Room:
    return Room(Millicores(told.cpu), Megabytes(told.memory), Gigabytes(told.disk))


def check_type(number: int) -> None:
    """Both documents know one type, and give it the same number."""
    if number != kudo_scheduler_pb2.CONTAINER:
        raise errors.Invalid(f"there is no type {number}; the only one is CONTAINER (0)", field="type")


def inventory_of(
    told: Iterable[kudo_controller_pb2.Instance] | Iterable[kudo_scheduler_pb2.Instance], numbers: Numbers
) -> tuple[InstanceId, ...] | None:
    """Which instances a node has; None if it names none, as that is what it says, too, if it says nothing."""
    found: dict[InstanceId, None] = {}
    for instance in told:
        check_type(instance.type)
        numbers.read(instance.status)
        found[InstanceId(ids.check_id(instance.id, "instances.id"))] = None
    return tuple(found) or None


def line_of(text: str) -> str:
    """A text for people as one line, cut to size: how it is put is no reason to refuse what it is about."""
    words = "".join(letter if letter.isprintable() else " " for letter in text).split()
    return " ".join(words)[:_MAX_LINE]
