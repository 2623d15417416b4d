"""What passes between the control plane and a node about instances: orders down, reports up.

An order is what the control plane wants of one instance on one node; a node gets the whole set when it
connects and changes after that. A report is what the node saw. Both carry the generation of the instance, by
which either side knows the other's word on an earlier copy. How they travel is `skerry.wire.nodes`.
"""

from __future__ import annotations

import msgspec

from skerry.model.ids import InstanceId
from skerry.model.room import NOTHING, Room
from skerry.model.statuses import FINAL, Desired, Status
from skerry.model.workloads import Instance, Spec


class Order(msgspec.Struct, frozen=True):
    """What a node is to do with an instance; a node refuses a lower generation than it has.

    `DESTROYED`: remove every trace of it and report TERMINATED in this generation, also if there is nothing.
    """

    instance: InstanceId
    generation: int
    spec: Spec
    desired: Desired

    @classmethod
    def of(cls, instance: Instance) -> Order:
        """What the node that `instance` is bound to is to do."""
        desired = instance.desired
        if instance.leaving is not None:
            desired = Desired.DESTROYED
        elif instance.observed.status in FINAL and desired is Desired.RUNNING:
            desired = Desired.STOPPED  # it is over; what is left of it stays for those who read its logs
        return cls(instance.id, instance.generation, instance.spec, desired)


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
