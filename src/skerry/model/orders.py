"""What passes between the control plane and a node about instances: orders down, reports up.

An order is what the control plane wants of one instance on one node; a node gets the whole set when it
connects and changes after that. A report is what the node saw. Both carry the generation of the instance, by
which either side knows the other's word on an earlier copy. How they travel is `skerry.wire.nodes`.
"""

from __future__ import annotations

import msgspec

from skerry.model.ids import InstanceId
from skerry.model.room import NOTHING, Room
from skerry.model.statuses import Desired, Status
from skerry.model.workloads import Spec


class Order(msgspec.Struct, frozen=True):
    """What a node is to do with an instance; a node refuses a lower generation than it has."""

    instance: InstanceId
    generation: int
    spec: Spec
    desired: Desired


class Report(msgspec.Struct, frozen=True):
    """What a node saw of an instance: `status` since `at`, and what it uses now."""

    instance: InstanceId
    generation: int
    status: Status
    at: float
    reason: str = ""
    exit_code: int | None = None  # of the last run, if it ended
    restarts: int = 0
    ip: str = ""
    usage: Room = NOTHING
