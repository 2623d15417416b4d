"""The copies of one service, classified for `decisions`; changes nothing.

A copy is *existing* until it has ended, *serving* unless it is being retired, *ready* if it also passes its
checks on a live node, and *settled* when it has been ready for long enough. Copies of one index replace each
other: during an update an index has two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from skerry.model.ids import InstanceId, NodeId
from skerry.model.services import Service, ServiceRevision
from skerry.model.statuses import TERMINAL, DesiredStatus
from skerry.model.workloads import Instance, InstanceOwner


class NodeAvailability(NamedTuple):
    """What matters of nodes to services."""

    unreachable: frozenset[NodeId] = frozenset()  # without heartbeats: their copies may or may not be ready
    draining: frozenset[NodeId] = frozenset()
    watched_since: float = 0.0  # by the present leader: earlier progress may not have been noticed


class ServiceCopies:
    """The copies of `service` as they are at `now`."""

    def __init__(
        self, service: Service, copies: Iterable[Instance], nodes: NodeAvailability, now: float
    ) -> None:
        self._service = service
        self._nodes = nodes
        self._now = now
        self.all = list(copies)
        self.over: dict[int, list[Instance]] = {}  # by index, the latest last
        self.existing = 0
        self.existing_indexes: set[int] = set()
        self.serving: dict[int, list[Instance]] = {}  # by index
        self.leaving: list[Instance] = []  # retired by the controller, or stopped by a user
        for copy in self.all:
            index = owner_of(copy).index
            if copy.observed.status in TERMINAL:
                self.over.setdefault(index, []).append(copy)
                continue
            self.existing += 1
            self.existing_indexes.add(index)
            if copy.desired is DesiredStatus.DESTROYED:
                continue
            if copy.retiring_at is not None or copy.desired is DesiredStatus.STOPPED:
                self.leaving.append(copy)
            else:
                self.serving.setdefault(index, []).append(copy)
        for ended in self.over.values():
            ended.sort(key=lambda copy: (copy.created_at, copy.id))  # nodes' clocks differ
        # Asked of every copy again and again, and the same for all: a service may have thousands.
        rollout = service.rollout
        self.is_frozen = rollout is not None and (rollout.is_halted or service.is_paused)
        self._canaries = self._choose_canaries()
        self._fitting = self._fitting_revisions()
        self._ready = {copy.id for copy in self.each_serving() if copy.is_ready and self.is_reachable(copy)}
        self.ready = len(self._ready)

    def with_service(self, service: Service) -> ServiceCopies:
        """The same copies, of the service as it has become by `rollouts.advance`."""
        if _aim(service) == _aim(self._service):  # at most its update has made progress
            self._service = service
            return self
        return ServiceCopies(service, self.all, self._nodes, self._now)

    def each_serving(self) -> Iterator[Instance]:
        return (copy for group in self.serving.values() for copy in group)

    def wanted(self, index: int) -> ServiceRevision:
        """The revision that a new copy of this index has."""
        service, rollout = self._service, self._service.rollout
        if rollout is None or service.stable is None:
            return service.target
        if rollout.is_canary:
            return service.target if index in self._canaries else service.stable
        return service.stable if self.is_frozen else service.target

    def fits(self, copy: Instance) -> bool:
        """True if the revision of this copy is one that it may stay with."""
        if self._fitting is not None:
            return owner_of(copy).revision in self._fitting
        return owner_of(copy).revision == self.wanted(owner_of(copy).index).number

    def is_of_target(self, copy: Instance) -> bool:
        return owner_of(copy).revision == self._service.target.number

    @property
    def watched_since(self) -> float:
        return self._nodes.watched_since

    def is_reachable(self, copy: Instance) -> bool:
        return copy.node not in self._nodes.unreachable

    def is_draining(self, copy: Instance) -> bool:
        """True if its node is to be empty."""
        return copy.node in self._nodes.draining

    def is_ready(self, copy: Instance) -> bool:
        """True if it is in service, passes its checks, and its node is live."""
        return copy.id in self._ready

    def settles_at(self, copy: Instance) -> float | None:
        """When it has been ready for long enough; None if it is not ready."""
        if not self.is_ready(copy):
            return None
        since = copy.ready_since
        if since > self._now + 1.0:  # the clock of its node is ahead: how long it has been ready is not known
            return self._now
        return since + self._service.update.min_ready_s

    def is_settled(self, copy: Instance) -> bool:
        at = self.settles_at(copy)
        return at is not None and at <= self._now

    def next_settles_at(self) -> float | None:
        """When the next copy will have been ready for long enough."""
        times = (self.settles_at(copy) for copy in self.each_serving() if copy.id in self._ready)
        return min((at for at in times if at is not None and at > self._now), default=None)

    def good_of_target(self) -> int:
        """How many indexes have a settled copy of the target."""
        return sum(
            any(self.is_of_target(copy) and self.is_settled(copy) for copy in group)
            for group in self.serving.values()
        )

    def _fitting_revisions(self) -> frozenset[int] | None:
        """The revisions that copies may stay with, if that is the same for all of them."""
        service, rollout = self._service, self._service.rollout
        if self.is_frozen and service.stable is not None:
            return frozenset((service.target.number, service.stable.number))
        if rollout is not None and rollout.is_canary and service.stable is not None:
            return None
        return frozenset((service.target.number,))

    def _choose_canaries(self) -> frozenset[int]:
        rollout = self._service.rollout
        if rollout is None or not rollout.is_canary:
            return frozenset()
        indexes = {*self.serving, *range(self._service.replicas)}

        def key(index: int) -> tuple[bool, int]:
            has_target = any(self.is_of_target(copy) for copy in self.serving.get(index, ()))
            return not has_target, index

        return frozenset(sorted(indexes, key=key)[: self._service.update.canary])


def _aim(service: Service) -> tuple[object, ...]:
    """What of a service decides how its copies are sorted, and may change while it is updated."""
    rollout, stable = service.rollout, service.stable
    return (
        service.target.number,
        stable and stable.number,
        rollout and (rollout.is_canary, rollout.is_halted, rollout.is_revert),
    )


def owner_of(copy: Instance) -> InstanceOwner:
    assert copy.owner is not None, "a copy of a service has it as its owner"
    return copy.owner


def newest_first(copy: Instance) -> tuple[float, InstanceId]:
    return -copy.created_at, copy.id
