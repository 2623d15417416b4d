"""Filters: why a node cannot take a request, in a fixed order.

Nine filters depend only on facts of the node, which seldom change: they are one `NodeRequirement`, whose
results are cached per set of constraints. The others depend on its allocation. Every rejection carries its
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from skerry.model.enforcement import NodeEnforcement
from skerry.model.resources import NO_RESOURCES
from skerry.model.workloads import Constraint
from skerry.schedule import devices
from skerry.schedule.allocations import NodeAllocation
from skerry.schedule.devices import DeviceChoice
from skerry.schedule.requests import HostPort, NodeView, PlacementRequest, RequirementKey, VolumePlace
from skerry.schedule.results import (
    AbilityMissing,
    AddressesExhausted,
    ArchitectureMismatch,
    ChecksUnsupported,
    ConstraintMismatch,
    FeatureMissing,
    InsufficientResources,
    NodeFeasibility,
    NodeMismatch,
    OwnNodeRequired,
    PortConflict,
    PortReserved,
    Rejection,
    ReplicaLimit,
    Unschedulable,
    VolumeElsewhere,
)


class NodeRequirement:
    """Required facts of a node: which one it is, its architecture, constraints on labels, not borrowed, runs
    health checks, may do what the request needs, has features, has the volumes."""

    def __init__(self, key: RequirementKey) -> None:
        self._key = key
        self._constraints = tuple(Constraint.parse(text) for text in key.constraints)

    def holds(self, view: NodeView) -> bool:
        key = self._key
        if key.node and key.node not in (view.name, view.id):
            return False
        if key.architecture and view.architecture != key.architecture:
            return False
        if key.needs_own_node and view.is_borrowed:
            return False
        if key.needs_checks and not view.runs_checks:
            return False
        if view.weaker is not None and next(self._weaknesses(view.weaker), None) is not None:
            return False
        if key.features and not set(view.features).issuperset(key.features):
            return False
        if key.volumes and any(not _is_at(place, view) for place in key.volumes):
            return False
        for wanted in self._constraints:  # noqa: SIM110  (half the time of `all`, once per node and request)
            if not wanted.holds(view.labels):
                return False
        return True

    def rejections(self, view: NodeView) -> Iterator[Rejection]:
        key = self._key
        if key.node and key.node not in (view.name, view.id):
            yield NodeMismatch(key.node)
        if key.architecture and view.architecture != key.architecture:
            yield ArchitectureMismatch(view.architecture, key.architecture)
        for wanted in self._constraints:
            if not wanted.holds(view.labels):
                has = view.labels.get(wanted.label, "")
                yield ConstraintMismatch(wanted.label, has, wanted.value, wanted.is_equal)
        if key.needs_own_node and view.is_borrowed:
            yield OwnNodeRequired()
        if key.needs_checks and not view.runs_checks:
            yield ChecksUnsupported()
        weaknesses = () if view.weaker is None else tuple(self._weaknesses(view.weaker))
        yield from weaknesses
        said = {each.ability for each in weaknesses if isinstance(each, AbilityMissing)}
        for feature in key.features:
            if feature not in view.features and feature not in said:  # an ability has its feature's name
                yield FeatureMissing(feature)
        for place in key.volumes:
            if not _is_at(place, view):
                yield VolumeElsewhere(place.volume, place.node)

    def _weaknesses(self, enforcement: NodeEnforcement) -> Iterator[Rejection]:
        for ability in self._key.abilities:
            if not enforcement.allows(ability):
                yield AbilityMissing(ability)
        if self._key.lowest_port and self._key.lowest_port < enforcement.first_port:
            yield PortReserved(self._key.lowest_port, enforcement.first_port)


def _is_at(place: VolumePlace, view: NodeView) -> bool:
    return bool(place.node) and place.node in (view.id, view.name)


@lru_cache(maxsize=256)
def requirement(key: RequirementKey) -> NodeRequirement:
    """The requirement of a request, cached: there are few different ones, and parsing costs more than a
    check."""
    return NodeRequirement(key)


def rejections(allocation: NodeAllocation, request: PlacementRequest) -> Iterator[Rejection]:
    """Every rejection of a request by a node, in the order of the filters; none if it fits."""
    view = allocation.current_view
    yield from requirement(request.requirement_key).rejections(view)
    if not view.is_schedulable:
        yield Unschedulable(view.unschedulable_reason)
    if not allocation.has_address:
        yield AddressesExhausted(view.addresses)
    free = allocation.free()
    lack = free.lack(request.resources)
    if lack != NO_RESOURCES:
        yield InsufficientResources(lack, free)
    for host_port in request.host_ports:
        if holders := allocation.host_ports.get(host_port):
            yield PortConflict(*host_port, min(holders))
    if (missing := choose_devices(allocation, request).lack) is not None:
        yield missing
    if has_most_replicas(allocation, request):
        yield ReplicaLimit(request.max_per_node)


def choose_devices(allocation: NodeAllocation, request: PlacementRequest) -> DeviceChoice:
    """The devices of the node that the request would get."""
    return devices.choose(allocation.current_view.devices, allocation.devices, request.devices)


def has_devices(allocation: NodeAllocation, request: PlacementRequest) -> bool:
    """True if all devices that it requests are free there."""
    return not request.devices or choose_devices(allocation, request).lack is None


def check_feasibility(allocation: NodeAllocation, request: PlacementRequest) -> NodeFeasibility:
    """Whether a request fits on a node, with every rejection."""
    return NodeFeasibility(allocation.node, allocation.free(), tuple(rejections(allocation, request)))


def has_most_replicas(allocation: NodeAllocation, request: PlacementRequest) -> bool:
    """True if the node has as many replicas of the request's group as one node may have."""
    limit = request.max_per_node
    return bool(limit) and allocation.replicas.get(request.group or "", 0) >= limit


def are_ports_free(allocation: NodeAllocation, host_ports: tuple[HostPort, ...]) -> bool:
    """True if no instance on the node has any of those ports."""
    return allocation.host_ports.keys().isdisjoint(host_ports)
