"""What is to be done with instances, from what is known of them and of nodes: no I/O, no clock, no chance.

`Decider` is told of every change and decides only what changed: who waits is placed in the order of age, who
is on a node that is lost or leaves is given up, and is then placed anew. What it decided it counts as done in
its own books until it hears how it went, so that many decisions can be under way at once and a node's room is
never given away twice. `decide` is the same from scratch, in one go.

Turns are bounded, and nothing is looked at again before something has changed that it depends on: a turn that
says `wake_at` None has nothing to do until it is told of a change. Whether this server is the one to decide
is not known here (`skerry.control.leading`); `skerry.control.reconciling` carries plans out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from skerry.control import census, transitions
from skerry.control.census import Census, Known
from skerry.control.pending import Pending
from skerry.control.promises import Promises
from skerry.control.rates import Bucket
from skerry.control.standings import Standing
from skerry.control.transitions import Step
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Liveness
from skerry.model.room import Room
from skerry.model.statuses import FINAL, Desired, Status
from skerry.model.workloads import Instance
from skerry.schedule import explaining
from skerry.schedule.answers import Placement, Unplaced, Verdict
from skerry.schedule.asks import Ask, Policy
from skerry.schedule.fleet import Fleet

# Instances that are over and were not destroyed are kept for who wants to know how they ended; not all.
KEEP_OVER = 1000
# From this many nodes with new capacity on, asking each what it could hold costs more than just trying.
_MANY_NODES = 64
# Looking at an instance costs a small part of what deciding on it does.
_LOOKS = 8
UNLIMITED = 10**9

Decided = tuple[Known, Step]


class Plan(msgspec.Struct):
    """What a turn decided; each instance is in it once."""

    places: list[Decided] = []  # bound to a node
    releases: list[Decided] = []  # their node, which drains, is to give them up
    replaces: list[Decided] = []  # taken off a node that is lost or gone
    expiries: list[Decided] = []  # over, and more than are kept
    waits: list[Decided] = []  # told why there is no place
    wake_at: float | None = None  # when there is more to do, if nothing changes before; `now`: at once

    @property
    def decided(self) -> list[Decided]:
        """All of it."""
        return [*self.replaces, *self.releases, *self.places, *self.expiries, *self.waits]


def decide(
    now: float,
    instances: Iterable[Known],
    nodes: Iterable[Standing],
    *,
    policy: Policy = Policy.BINPACK,
    replacements_per_s: float = 20.0,
) -> Plan:
    """All that is to be done about `instances` on `nodes` at `now`."""
    decider = Decider(Census(instances), policy=policy, replacements_per_s=replacements_per_s)
    for standing in nodes:
        decider.see(standing.view.id, standing)
    decider.begin()
    return decider.turn(now, UNLIMITED)


class Decider:
    """The books of one server: what is bound where, who waits, who must be replaced."""

    def __init__(self, known: Census, *, policy: Policy, replacements_per_s: float) -> None:
        self._census = known
        self._policy = policy
        self._fleet = Fleet()
        self._nodes: dict[NodeId, Standing] = {}
        self._pending = Pending()
        self._dirty: dict[InstanceId, None] = {}  # to be looked at
        self._lost: dict[InstanceId, None] = {}  # on lost nodes, replaced as the rate allows
        self._stuck: dict[InstanceId, None] = {}  # on draining nodes, with nowhere to go
        self._hopeful: dict[InstanceId, None] = {}  # of those, who may find a place now
        self._reserved: set[InstanceId] = set()  # who leaves, and for whose next copy a place is kept
        self._under_way: set[InstanceId] = set()  # decided; how it went is not known yet
        self._homes: dict[InstanceId, NodeId] = {}  # where a copy was that left for its successor
        self._promises = Promises(self._fleet)
        self._drains: dict[NodeId, float] = {}  # until when what is left there may stay
        self._grown: set[NodeId] = set()  # may hold more than when somebody last tried
        self._replacing = Bucket.full(replacements_per_s, at=float("-inf"))

    # What it is told

    def begin(self) -> None:
        """Nothing is under way; look at everything anew."""
        self._under_way.clear()
        for known in self._census:
            self._account(known.value.id)
            self._dirty[known.value.id] = None

    def hear(self, before: Known | None, after: Known | None) -> None:
        """An instance changed, and the census has it."""
        known = after or before
        assert known is not None, "something is before or after a change"
        id = known.value.id
        if after is None or after.value.node is not None:
            self._homes.pop(id, None)
        elif before is not None and before.value.leaving is not None and before.value.node is not None:
            self._homes[id] = before.value.node
        if id in self._under_way:
            return
        self._account(id)
        if after is not None:
            self._dirty[id] = None
        else:  # at once, since on a server that does not lead nobody looks
            self._dirty.pop(id, None)
            self._set_aside(id)
            self._pending.discard(id)

    def see(self, node: NodeId, standing: Standing | None) -> None:
        """A node stands like this now; None: it is not registered."""
        before = self._nodes.get(node)
        if standing is None:
            self._nodes.pop(node, None)
            self._fleet.remove_node(node)
        else:
            self._nodes[node] = standing
            if before is None or before.view != standing.view:
                self._fleet.set_node(standing.view)
                self._grown.add(node)
        if before is None or standing is None or _concerns(before, standing):
            if standing is not None and standing.drain_by is not None:
                self._drains[node] = standing.drain_by
            else:
                self._drains.pop(node, None)
            for known in self._census.on_node(node):
                self._dirty[known.value.id] = None

    def keep(self, node: NodeId, promised: Mapping[InstanceId, Room]) -> None:
        """So much of `node` is promised, instead of what was before, each part to the instance of that id.

        It is kept for as long as that instance is nowhere, and whether or not there is one yet: nobody else
        is placed there, and who is to have it is tried there first. What is there already stays.
        """
        for id in self._promises.set(node, promised):
            self._mind_promise(id)
            self._dirty[id] = None

    def done(self, ids: Iterable[InstanceId]) -> None:
        """What was decided on these is durable and heard of, or did not happen."""
        for id in ids:
            self._under_way.discard(id)
            self._account(id)
            self._dirty[id] = None

    # What it says

    def is_under_way(self, id: InstanceId) -> bool:
        return id in self._under_way

    def occupy(self, ids: Iterable[InstanceId]) -> None:
        """Somebody else decided something on these: leave them alone until `done`."""
        self._under_way.update(ids)

    def explain(self, instance: Instance) -> Sequence[Verdict]:
        """What every node says to it."""
        ask = Ask.of(instance.id, instance.spec)
        return self._promises.without(instance.id, lambda: self._fleet.explain(ask))

    def turn(self, now: float, limit: int) -> Plan:
        """At most about `limit` decisions."""
        plan = Plan()
        self._look_at_dirty(plan, now, limit)
        self._replace_lost(plan, now, limit)
        self._wake()
        self._release_stuck(plan, limit)
        self._place(plan, now, limit)
        self._tell(plan, limit)
        self._expire(plan, now, limit)
        self._under_way.update(known.value.id for known, _ in plan.decided)
        plan.wake_at = self._wake_at(now)
        return plan

    def _look_at_dirty(self, plan: Plan, now: float, limit: int) -> None:
        for node in [node for node, by in self._drains.items() if by <= now]:
            del self._drains[node]
            self._dirty.update((known.value.id, None) for known in self._census.on_node(node))
        for _ in range(min(limit * _LOOKS, len(self._dirty))):
            id = next(iter(self._dirty))
            del self._dirty[id]
            known = self._census.get(id)
            self._set_aside(id)
            if known is None or known.value.node is not None:
                self._pending.discard(id)
            if known is not None and id not in self._under_way:
                self._look(plan, known, now)

    def _set_aside(self, id: InstanceId) -> None:
        """What it waited for, on a node, it waits for no more."""
        self._lost.pop(id, None)
        self._stuck.pop(id, None)
        self._hopeful.pop(id, None)

    def _look(self, plan: Plan, known: Known, now: float) -> None:
        """File an instance under what it waits for, or decide at once."""
        instance = known.value
        id, node = instance.id, instance.node
        if node is None:
            if _waits(instance):
                ask = Ask.of(id, instance.spec)
                self._pending.add(
                    ask, census.place_of(instance), instance.observed.reason, self._promises.home(id)
                )
            else:
                self._pending.discard(id)
            return
        standing = self._nodes.get(node)
        is_to_run = instance.desired is Desired.RUNNING and instance.observed.status not in FINAL
        reason = ""
        if standing is None:
            reason = f"node {node} is not registered any more"
        elif standing.liveness is Liveness.LOST:
            if is_to_run:
                self._lost[id] = None
                return
            reason = f"node {node} is lost"
        if instance.observed.status in FINAL:
            if reason and instance.desired is Desired.DESTROYED:
                plan.replaces.append(_unbind(known, now, reason))
            return
        if reason:
            plan.replaces.append(_unbind(known, now, reason))
        elif standing is not None and standing.drain_by is not None:
            if instance.leaving is not None or instance.desired is Desired.DESTROYED:
                return  # it goes when the node says that it is gone
            if standing.drain_by > now:
                self._stuck[id] = self._hopeful[id] = None
            else:
                self._release(plan, known)

    def _replace_lost(self, plan: Plan, now: float, limit: int) -> None:
        self._replacing = self._replacing.filled(now)
        while self._lost and len(plan.replaces) < limit:
            left = self._replacing.take()
            if left is None:
                return
            self._replacing = left
            id = next(iter(self._lost))
            del self._lost[id]
            known = self._census.get(id)
            node = None if known is None else known.value.node
            standing = None if node is None else self._nodes.get(node)
            if known is None or standing is None or id in self._under_way:
                continue
            if standing.liveness is Liveness.LOST and known.value.observed.status not in FINAL:
                plan.replaces.append(_unbind(known, now, f"node {node} is lost"))

    def _wake(self) -> None:
        """Try those again who could fit where there is more capacity than there was."""
        if not self._grown:
            return
        grown = [node for node in self._grown if node in self._nodes and self._nodes[node].view.takes_work]
        self._grown.clear()
        if not grown:
            return
        self._hopeful.update(self._stuck)
        if len(grown) >= _MANY_NODES:
            self._pending.wake(lambda room: True)
        else:
            free = [self._fleet.free(node) for node in grown]
            kept = {room for node in grown for room in self._promises.rooms(node)}
            self._pending.wake(lambda room: room in kept or any(one.fits(room) for one in free))

    def _release_stuck(self, plan: Plan, limit: int) -> None:
        """Of draining nodes, those may leave at once who have somewhere to go, or nothing to run."""
        while self._hopeful and len(plan.releases) < limit:
            id = next(iter(self._hopeful))
            del self._hopeful[id]
            known = self._census.get(id)
            if known is None or id not in self._stuck or id in self._under_way:
                continue
            instance = known.value
            standing = None if instance.node is None else self._nodes.get(instance.node)
            if standing is None or standing.drain_by is None or instance.observed.status in FINAL:
                continue
            if instance.desired is Desired.RUNNING:
                ask = Ask.of(_next_copy(id), instance.spec)
                found = self._fleet.place(ask, self._policy)
                if not isinstance(found, Placement):
                    continue
                self._reserve(found.node, id, ask)
            del self._stuck[id]
            self._release(plan, known)

    def _release(self, plan: Plan, known: Known) -> None:
        step = transitions.leave(known.value, reason=f"node {known.value.node} is being drained")
        if step is not None:
            plan.releases.append((known, step))

    def _place(self, plan: Plan, now: float, limit: int) -> None:
        while len(plan.places) < limit and (ask := self._pending.eldest()) is not None:
            id = ask.instance
            known = self._census.get(id)
            is_current = known is not None and _waits(known.value) and Ask.of(id, known.value.spec) == ask
            if known is None or id in self._under_way or not is_current:
                self._pending.discard(id)  # it has changed, or is about to, and is looked at again then
                continue
            self._give_back(id)
            node = self._promises.without(id, partial(self._find_place, ask))
            if isinstance(node, Unplaced):
                self._pending.park(ask, explaining.summary(node), now)
                continue
            self._fleet.bind(node, ask)
            self._mind_promise(id)
            self._pending.discard(id)
            plan.places.append((known, transitions.bind(known.value, node, at=now)))

    def _find_place(self, ask: Ask) -> NodeId | Unplaced:
        """Where its last copy was, where room is kept for it, or where there is some."""
        for home in (self._homes.get(ask.instance), self._promises.home(ask.instance)):
            if home is not None and self._fleet.fits(home, ask):
                return home
        found = self._fleet.place(ask, self._policy)
        return found.node if isinstance(found, Placement) else found

    def _tell(self, plan: Plan, limit: int) -> None:
        for id, reason in self._pending.tell(limit - len(plan.places)):
            known = self._census.get(id)
            if known is None or id in self._under_way or not _waits(known.value):
                continue
            if (step := transitions.wait(known.value, reason)) is not None:
                plan.waits.append((known, step))

    def _expire(self, plan: Plan, now: float, limit: int) -> None:
        excess = max(0, self._census.count_over() - KEEP_OVER)
        for known in self._census.first_over(min(limit, excess)):
            if known.value.id in self._under_way:
                continue
            step = transitions.wish(known.value, Desired.DESTROYED, at=now, actor="skerry")
            if step is not None:
                plan.expiries.append((known, step))

    def _wake_at(self, now: float) -> float | None:
        if self._dirty or self._hopeful or self._grown or not self._pending.is_idle:
            return now
        times = list(self._drains.values())
        if self._lost:
            times.append(self._replacing.next_at())
        return min(times, default=None)

    def _account(self, id: InstanceId) -> None:
        """Bring the books in line with the census on one instance."""
        known = self._census.get(id)
        instance = None if known is None else known.value
        node = ask = None
        if instance is not None and instance.node is not None and instance.observed.status not in FINAL:
            node, ask = instance.node, Ask.of(id, instance.leaving or instance.spec)
        before = self._fleet.bound(id)
        # It may be where it was and be another copy: what was between the two need not have been heard.
        if node != before or ask != self._fleet.ask(id):
            if node is None or ask is None:
                self._fleet.unbind(id)
            else:
                self._fleet.bind(node, ask)
            if before is not None:
                self._grown.add(before)
        if id in self._reserved and not (instance is not None and _is_moving(instance)):
            self._give_back(id)
        self._mind_promise(id)

    def _mind_promise(self, id: InstanceId) -> None:
        has_place = self._fleet.bound(id) is not None or id in self._reserved
        if (node := self._promises.mind(id, has_place=has_place)) is not None:
            self._grown.add(node)

    def _reserve(self, node: NodeId, id: InstanceId, ask: Ask) -> None:
        """Keep a place for the next copy while the present one leaves."""
        self._fleet.bind(node, ask)
        self._reserved.add(id)

    def _give_back(self, id: InstanceId) -> None:
        if id in self._reserved:
            self._reserved.discard(id)
            place = _next_copy(id)
            if (node := self._fleet.bound(place)) is not None:
                self._grown.add(node)
            self._fleet.unbind(place)
            self._mind_promise(id)


def _unbind(known: Known, now: float, reason: str) -> Decided:
    return known, transitions.unbind(known.value, at=now, reason=reason, actor="skerry")


def _next_copy(id: InstanceId) -> InstanceId:
    """What a place is kept under for the successor; no instance can be called that."""
    return InstanceId(f"{id}+")


def _is_moving(instance: Instance) -> bool:
    return instance.desired is Desired.RUNNING and (instance.node is None or instance.leaving is not None)


def _waits(instance: Instance) -> bool:
    return (
        instance.node is None
        and instance.observed.status is Status.SCHEDULING
        and instance.desired is Desired.RUNNING
    )


def _concerns(before: Standing, after: Standing) -> bool:
    """True if what is on the node must be looked at."""
    return before.liveness is not after.liveness or before.drain_by != after.drain_by
