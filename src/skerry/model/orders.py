"""What passes between the control plane and a node about instances: orders down, reports up.

An order is what the control plane wants of one instance on one node; a node gets the whole set when it
connects and changes after that. A report is what the node saw. Both carry the generation of the instance, by
which either side knows the other's word on an earlier copy. How they travel is
`skerry.transport.links.nodes`.
"""

from __future__ import annotations

import msgspec

from skerry.model.ids import InstanceId
from skerry.model.network import Egress
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec


class InstanceOrder(msgspec.Struct, frozen=True):
    """What a node is to do with an instance; a node refuses a lower generation than it has.

    `DESTROYED`: remove every trace of it and report TERMINATED in this generation, also if there is nothing.
    """

    instance: InstanceId
    generation: int
    spec: InstanceSpec
    desired: DesiredStatus
    egress: Egress = Egress.ALL  # of its namespace
    receipt: bytes = b""  # to be shown to a control plane that has forgotten it; nobody else reads it
    request_id: str = ""  # of the request that it follows from, for the node's log

    @classmethod
    def of(cls, instance: Instance, egress: Egress = Egress.ALL) -> InstanceOrder:
        """What the node that `instance` is bound to is to do."""
        desired = instance.desired
        if instance.leaving is not None:
            desired = DesiredStatus.DESTROYED
        elif instance.observed.status in TERMINAL and desired is DesiredStatus.RUNNING:
            desired = (
                DesiredStatus.STOPPED
            )  # it is over; what is left of it stays for those who read its logs
        return cls(
            instance.id,
            instance.generation,
            instance.spec,
            desired,
            egress,
            request_id=instance.request_id,
        )


class InstanceReport(msgspec.Struct, frozen=True):
    """What a node saw of an instance: `status` since `at`, and what it uses now."""

    instance: InstanceId
    generation: int
    status: InstanceStatus
    at: float
    reason: str = ""
    exit_code: int | None = None  # of the last run, if it ended
    restarts: int = 0
    ip: str = ""
    usage: Resources = NO_RESOURCES
    retry_at: float | None = None  # when the node starts it again, if it waits for that
    has_passed: bool = True  # its checks, while it runs; without checks always
    checked_at: float = 0.0  # when that last changed
    check_message: str = ""  # why it has not passed
    metric: float | None = None  # what it shows of itself for autoscaling, if that is asked for
