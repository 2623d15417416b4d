"""What is to be done about a service: `decide`, from its record, its copies and the time. Pure.

What always holds of what is decided here:

- There are never more than `replicas + max_surge` copies, however they came about.
- A ready copy is taken out of service only while at least `replicas - max_unavailable` others are ready. One
  on a node that is silent does not count as ready, and is not taken either unless enough others are.
- A copy that failed is replaced for ever, after pauses that grow.
- A copy leaves in two steps: it is retired, which takes it out of service, and destroyed when it has drained.
- A copy that writes to volumes is created when no other of its index is left.

An update replaces copies index by index: start-first makes the new copy beside the old one, which is retired
when the new one has settled; stop-first retires the old one first. A revert is an update to the last good
revision, so a ready copy of the bad one stays until it is replaced. How far an update is:
`skerry.control.services.rollouts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from skerry.control.services import rollouts
from skerry.control.services.copies import NodeAvailability, ServiceCopies, newest_first, owner_of
from skerry.control.services.rollouts import ServiceEvent
from skerry.model.ids import InstanceId
from skerry.model.services import RevisionOutcome, Service, ServiceRevision
from skerry.model.statuses import DesiredStatus
from skerry.model.workloads import Instance

# Copies that one plan creates: a service of thousands takes several turns.
MAX_CREATED = 64
# Pauses before a copy that failed is replaced. One that ran for `_LASTED_S` begins a new count.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0
_LASTED_S = 600.0
_MOST_ATTEMPTS = 16  # beyond which the pause does not grow
# The clocks of two servers, at most. What is further ahead was written before the clock was set back.
_CLOCKS_DIFFER_S = 60.0


class NewCopy(msgspec.Struct, frozen=True):
    """A copy to be created."""

    index: int
    revision: ServiceRevision
    attempt: int = 0


@dataclass(slots=True)
class ServicePlan:
    """What is to be done; `service` is its record afterwards."""

    service: Service
    creates: list[NewCopy] = field(default_factory=list)
    retires: list[Instance] = field(default_factory=list)
    destroys: list[Instance] = field(default_factory=list)
    outcomes: dict[int, RevisionOutcome] = field(default_factory=dict)  # of revisions, by number
    events: list[ServiceEvent] = field(default_factory=list)
    is_removed: bool = False  # deleted, and nothing of it is left
    wake_at: float | None = None  # when to decide again if nothing changes

    def wake(self, at: float | None) -> None:
        """Decide again at `at`, or earlier."""
        if at is not None and (self.wake_at is None or at < self.wake_at):
            self.wake_at = at


def decide(service: Service, copies: Sequence[Instance], nodes: NodeAvailability, now: float) -> ServicePlan:
    """The next steps from `copies` to the desired state of `service`."""
    if service.is_deleting:
        plan = ServicePlan(service, is_removed=not copies)
        plan.destroys += [copy for copy in copies if copy.desired is not DesiredStatus.DESTROYED]
        return plan
    sorted_copies = ServiceCopies(service, copies, nodes, now)
    advance = rollouts.advance(service, sorted_copies, now)
    plan = ServicePlan(advance.service, outcomes=advance.outcomes, events=advance.events)
    plan.wake(advance.wake_at)
    _Decision(plan, sorted_copies.with_service(plan.service), now).run()
    return plan


class _Decision:
    """One run of `decide`: counts what it has decided so far."""

    def __init__(self, plan: ServicePlan, copies: ServiceCopies, now: float) -> None:
        self._plan = plan
        self._service = plan.service
        self._copies = copies
        self._now = now
        self._ready = copies.ready
        self._leaving: set[InstanceId] = set()
        self._bounds = plan.service.bounds
        is_stop_first = self._bounds.is_stop_first and plan.service.rollout is not None
        most = self._service.replicas + (0 if is_stop_first else self._bounds.surge)
        self._free = min(MAX_CREATED, most - copies.existing)  # copies that may be created
        self._floor = self._service.replicas - self._bounds.unavailable
        budget = self._service.budget.resolve(self._service.replicas)
        if self._service.has_own_data:
            budget = max(1, budget)  # a copy cannot start elsewhere before it leaves
        self._drain_floor = self._service.replicas - budget

    def run(self) -> None:
        self._finish_leaving()
        for group in self._copies.serving.values():
            self._remove_superfluous(group)
        self._scale_down()
        self._fill()
        for index in sorted(self._copies.serving):
            self._replace(index)
        self._discard_ended()
        self._plan.wake(self._copies.next_settles_at())

    def _finish_leaving(self) -> None:
        """Destroy what has been out of service for long enough, or does not run anyway."""
        for copy in self._copies.leaving:
            until = (copy.retiring_at or 0.0) + self._service.update.drain_s
            is_set_back = until > self._now + 2 * self._service.update.drain_s + _CLOCKS_DIFFER_S
            if until <= self._now or is_set_back or not _may_serve(copy):
                self._plan.destroys.append(copy)
            else:
                self._plan.wake(until)

    def _remove_superfluous(self, group: Sequence[Instance]) -> None:
        """Of one index keep the best copy, and the one that it is to replace until it has settled. While an
        update is held, both stay."""
        copies = self._copies
        if len(group) == 1:  # the most common by far
            if self._is_useless(group[0]):
                self._withdraw(group[0], self._floor)
            return
        staying = [copy for copy in group if copies.fits(copy) and not copies.is_draining(copy)]
        settled = [copy for copy in staying if copies.is_settled(copy)]
        best = min(settled or staying, key=self._worth, default=None)
        for copy in group:
            if copy is best:
                continue
            is_held = (
                copies.is_frozen and best is not None and owner_of(copy).revision != owner_of(best).revision
            )
            if self._is_useless(copy) or (not is_held and (settled or copy in staying)):
                self._withdraw(copy, self._floor)

    def _is_useless(self, copy: Instance) -> bool:
        """True if it has to be replaced, and serves no requests until then."""
        return not self._copies.fits(copy) and not copy.is_ready and self._copies.is_reachable(copy)

    def _worth(self, copy: Instance) -> tuple[bool, float, str]:
        return not self._copies.is_ready(copy), copy.created_at, copy.id

    def _scale_down(self) -> None:
        """Retire the indexes whose copies are the least ready, and of those the newest."""
        if len(self._copies.serving) <= self._service.replicas:
            return
        groups = {index: left for index in self._copies.serving if (left := self._remaining(index))}
        excess = len(groups) - self._service.replicas
        if excess <= 0:
            return

        def key(index: int) -> tuple[bool, bool, tuple[float, InstanceId]]:
            group = groups[index]
            is_ready = any(self._copies.is_ready(copy) for copy in group)
            is_staying = any(not self._copies.is_draining(copy) for copy in group)
            return is_ready, is_staying, min(newest_first(copy) for copy in group)

        for index in sorted(groups, key=key)[:excess]:
            for copy in groups[index]:
                self._withdraw(copy, self._floor)

    def _fill(self) -> None:
        """Create copies for indexes that have none."""
        used = (
            {index for index in self._copies.serving if self._remaining(index)}
            if self._leaving
            else self._copies.serving
        )
        missing = self._service.replicas - len(used)
        index = 0
        while missing > 0 and self._free > 0:
            if index not in used:
                missing -= 1
                self._create(index)
            index += 1

    def _replace(self, index: int) -> None:
        """Bring an index to the revision it should have, and off a node that is to be empty."""
        copies, group = self._copies, self._remaining(index)
        if not group:
            return
        if len(group) == 1 and copies.fits(group[0]) and not copies.is_draining(group[0]):
            return
        draining = [copy for copy in group if copies.fits(copy) and copies.is_draining(copy)]
        if any(copies.fits(copy) and not copies.is_draining(copy) for copy in group):
            # The replacement is under way. If it has no place yet, the budget may let the old copy go before.
            for copy in draining:
                self._withdraw(copy, self._drain_floor)
            return
        if draining:
            if self._free > 0 and not self._service.has_own_data:
                self._create(index)
            else:
                self._withdraw(draining[0], self._drain_floor)
        elif self._free > 0 and not self._bounds.is_stop_first:
            self._create(index)
        elif self._bounds.unavailable > 0:
            for copy in group:
                self._withdraw(copy, self._floor)

    def _create(self, index: int) -> None:
        """Create a copy, unless its predecessor failed a short while ago, or still has its volumes."""
        if self._service.has_own_data and index in self._copies.existing_indexes:
            return  # the end of that copy is a change, and decides anew
        revision = self._copies.wanted(index)
        attempt, due_at = _next_attempt(self._copies.over.get(index, ()), revision, self._now)
        if due_at > self._now:
            self._plan.wake(due_at)
            return
        self._free -= 1
        self._plan.creates.append(NewCopy(index, revision, attempt))

    def _withdraw(self, copy: Instance, floor: int) -> None:
        """Retire a copy if so many others stay ready; destroy it at once if it serves no requests."""
        if copy.id in self._leaving:
            return
        if self._copies.is_ready(copy):
            if self._ready - 1 < floor:
                return
            self._ready -= 1
            self._plan.retires.append(copy)
        elif copy.is_ready and self._ready < floor:
            return  # its node is silent, and it may well be in service there
        else:
            self._plan.destroys.append(copy)
        self._leaving.add(copy.id)

    def _remaining(self, index: int) -> Sequence[Instance]:
        group = self._copies.serving.get(index, [])
        if not self._leaving:
            return group
        return [copy for copy in group if copy.id not in self._leaving]

    def _discard_ended(self) -> None:
        """Of the copies of an index that are over keep the last, for its logs."""
        for ended in self._copies.over.values():
            self._plan.destroys += [
                copy for copy in ended[:-1] if copy.desired is not DesiredStatus.DESTROYED
            ]


def _may_serve(copy: Instance) -> bool:
    """True if it may still serve requests."""
    return copy.desired is DesiredStatus.RUNNING and copy.node is not None and copy.observed.has_passed


def _next_attempt(ended: Iterable[Instance], revision: ServiceRevision, now: float) -> tuple[int, float]:
    """Which attempt the next copy is, and when it is due, after those of its index that are over."""
    last = None
    for copy in ended:
        if owner_of(copy).revision == revision.number:
            last = copy
    if last is None:
        return 0, 0.0
    ended_at = last.status_since(now)
    if ended_at - last.created_at >= _LASTED_S:
        return 1, ended_at + _FIRST_PAUSE_S
    attempt = min(owner_of(last).attempt + 1, _MOST_ATTEMPTS)
    return attempt, ended_at + min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (attempt - 1))
