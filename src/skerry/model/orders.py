"""Orders to nodes about instances, and reports of nodes.

An order is the desired state of one instance on one node; a node gets all of them when it connects and
changes after that. A report is the observed state. Both carry the generation of the instance, by which
messages about earlier copies are recognized. `skerry.transport.links.nodes` transports them.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from skerry.model.devices import DeviceRequest
from skerry.model.ids import DEFAULT_NAMESPACE, InstanceId, Namespace
from skerry.model.network import Egress, NetworkAccess
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec


class InstanceOrder(msgspec.Struct, frozen=True):
    """The desired state of an instance on a node; a node refuses a lower generation than it has.

    `DESTROYED`: remove every trace of it and report TERMINATED in this generation, also if there is nothing.
    """

    instance: InstanceId
    generation: int
    spec: InstanceSpec
    desired: DesiredStatus
    egress: Egress = Egress.ALL  # its own, or that of its namespace
    receipt: bytes = b""  # for a control plane with a restored store; not read by others
    request_id: str = ""  # of the request that it follows from, for the node's log
    namespace: Namespace = DEFAULT_NAMESPACE
    is_isolated: bool = False  # its namespace is: not every container may connect to it
    owner: str = ""  # such as `service/web`, for its logs; empty: a user created it

    @property
    def access(self) -> NetworkAccess:
        """What its container may reach, and who may reach it."""
        return NetworkAccess(self.egress, self.namespace, self.is_isolated)

    def without_policies(self) -> InstanceOrder:
        """For a node of before `NodeFeature.POLICIES`, which refuses what it does not know."""
        return replace(self, egress=Egress.INTERNET) if Egress.INTERNET.exceeds(self.egress) else self

    @classmethod
    def of(
        cls, instance: Instance, egress: Egress = Egress.ALL, *, is_isolated: bool = False
    ) -> InstanceOrder:
        """What the node that `instance` is bound to is to do."""
        desired = instance.desired
        if instance.leaving is not None:
            desired = DesiredStatus.DESTROYED
        elif instance.observed.status in TERMINAL and desired is DesiredStatus.RUNNING:
            desired = DesiredStatus.STOPPED  # it has ended; its logs stay
        spec = instance.spec
        if spec.devices:
            # Its node gets them by name: which ones was decided with the node.
            spec = replace(spec, devices=tuple(map(DeviceRequest.parse, instance.devices)))
        return cls(
            instance.id,
            instance.generation,
            spec.with_volumes(instance.volumes),
            desired,
            egress,
            request_id=instance.request_id,
            namespace=instance.namespace,
            is_isolated=is_isolated,
            owner=f"{instance.owner.kind}/{instance.owner.name}" if instance.owner else "",
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
    metric: float | None = None  # its metric for autoscaling, if it has one
    ip6: str = ""
    previous_exit_code: int | None = None  # of the run before the last one, if it is known
