"""Results of the scheduler as text: why a node cannot take an instance, and why none can.

The control plane uses it for the reason of a pending instance, and diagnostics for each node. It only
formats; the numbers are in the results.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from skerry.model.container_options import NodeFeature
from skerry.model.enforcement import NodeAbility
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.schedule.results import (
    AbilityMissing,
    AddressesExhausted,
    ArchitectureMismatch,
    ChecksUnsupported,
    ConstraintMismatch,
    DevicesUnavailable,
    FeatureMissing,
    InsufficientResources,
    NodeFeasibility,
    NodeMismatch,
    OwnNodeRequired,
    PlacementFailure,
    PortConflict,
    PortReserved,
    Rejection,
    RejectionCount,
    ReplicaLimit,
    Unschedulable,
    VolumeElsewhere,
)

_WITHOUT_ROOT: Final = {
    NodeAbility.DISK_LIMITS: "cannot limit disk",
    NodeAbility.VOLUMES: "has no volumes and mounts",
    NodeAbility.DEVICES: "gives no devices to containers",
    NodeAbility.HOST_ROOT: "has no containers whose root is the node's root",
    NodeAbility.GUESTS: "runs nothing for other clouds",
}


def describe_rejection(rejection: Rejection) -> str:
    """A predicate of the node: `is cordoned`, `lacks 500 milli-cores of cpu (free: ...)`."""
    match rejection:
        case NodeMismatch(wanted):
            return f"is not node {wanted}"
        case ArchitectureMismatch(has, wanted):
            return f"architecture is {has or 'unknown'}, {wanted} is wanted"
        case ConstraintMismatch(label, has, wanted, is_equal):
            there = f'label {label} is "{has}"' if has else f"label {label} is not set"
            if not is_equal:
                return f"{there}, which is not wanted"
            return f'{there}, "{wanted}" is wanted' if wanted else f"{there}, none is wanted"
        case OwnNodeRequired():
            return "is borrowed, and takes nothing that publishes ports or is lent on"
        case ChecksUnsupported():
            return "runs no health checks; upgrade Skerry there"
        case FeatureMissing(NodeFeature.INIT):
            return "has no init program for containers; install catatonit there"
        case FeatureMissing(NodeFeature.OPTIONS):
            return "does not know the options that it has; upgrade Skerry there"
        case FeatureMissing(NodeFeature.DEVICES):
            return "gives no devices to containers; upgrade Skerry there"
        case FeatureMissing(NodeFeature.VOLUMES):
            return "has no volumes and mounts; its log says why, or upgrade Skerry there"
        case FeatureMissing(feature):
            return f"does not have the feature {feature}; upgrade Skerry there"
        case AbilityMissing(ability):
            return f"runs without root, and {_WITHOUT_ROOT[ability]}"
        case PortReserved(port, first):
            return (
                f"runs without root, and port {port} cannot be published there, only {first} and above ("
                "sysctl net.ipv4.ip_unprivileged_port_start)"
            )
        case VolumeElsewhere(volume, ""):
            return f"volume {volume} does not exist"
        case VolumeElsewhere(volume, node):
            return f"does not have volume {volume}, which is on node {node}"
        case Unschedulable(why):
            return why or "takes nothing new"
        case AddressesExhausted(addresses):
            return f"has no address left (all {addresses} are taken)"
        case InsufficientResources(lack, free):
            return f"lacks {describe_resources(lack)} (free: {describe_resources(free)})"
        case PortConflict(port, protocol, by):
            return f"port {port}/{protocol} is taken" + (f" by instance {by}" if by else "")
        case DevicesUnavailable(device, wanted, free, present):
            return describe_devices(device, wanted, free, present)
        case ReplicaLimit(limit):
            return f"has {limit} of its replicas, and no node may have more"


def describe_devices(device: str, wanted: int, free: int, present: int) -> str:
    """What a node lacks of devices."""
    if "=" in device:
        return f"device {device} is held by another instance" if present else f"has no device {device}"
    if not present:
        return f"has no {device}"
    return f"has {free} free {device} of {present}, {wanted} {'is' if wanted == 1 else 'are'} wanted"


def describe_feasibility(feasibility: NodeFeasibility) -> str:
    """The feasibility of one node, in one line."""
    if feasibility.fits:
        return f"can take it (free: {describe_resources(feasibility.free)})"
    return "; ".join(describe_rejection(rejection) for rejection in feasibility.rejections)


def describe_failure(failure: PlacementFailure) -> str:
    """Why no node fits, such as `3 nodes: lacks 500 milli-cores of cpu; 1 node: is cordoned`."""
    if not failure.reasons:
        return "there are no nodes"
    # Of a request for one node, the others say nothing.
    reasons = [reason for reason in failure.reasons if not isinstance(reason.rejection, NodeMismatch)]
    if not reasons and isinstance(wanted := failure.reasons[0].rejection, NodeMismatch):
        return f"there is no node {wanted.wanted}; it waits for one of that name or id"
    return "; ".join(_counted(reason, failure.nodes) for reason in reasons)


def describe_resources(resources: Resources) -> str:
    """The resources that are not zero, such as `500 milli-cores of cpu, 64 MB of memory`."""
    if resources == NO_RESOURCES:
        return "nothing"
    return ", ".join(f"{amount} {unit} of {name}" for name, unit, amount in resources.parts() if amount)


def _counted(reason: RejectionCount, nodes: int) -> str:
    rejection = reason.rejection
    if isinstance(rejection, DevicesUnavailable) and reason.nodes == nodes:
        some = "a" if rejection.wanted == 1 else str(rejection.wanted)
        return f"0 of {nodes} nodes have {some} free {rejection.device}"
    if isinstance(rejection, InsufficientResources):
        degree = "at least " if reason.nodes > 1 else ""
        text = f"lacks {degree}{describe_resources(rejection.lack)}"
    else:
        text = describe_rejection(rejection)
    return f"{reason.nodes} {'node' if reason.nodes == 1 else 'nodes'}: {text}"


def without_instances(verdict: NodeFeasibility) -> NodeFeasibility:
    """The same without which instance has a port, as that may be of another namespace."""
    rejections = tuple(
        replace(each, by=None) if isinstance(each, PortConflict) else each for each in verdict.rejections
    )
    return replace(verdict, rejections=rejections)
