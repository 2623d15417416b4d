"""`qosaware`: where the response has the highest expected utility, by its class and the call time model.

A response in time has the utility of the call's class, a late one none, and a fast one a little more than a
slow one. For every candidate, the probability to be in time comes from the predicted times and their spread.
Its cost is what the call displaces: where calls find no capacity, a second has a price, which is the utility
per second of the calls that come here. So long calls of low utility leave crowded members to others, and are
refused when all are crowded. Every so many calls, one that can afford it goes where the least is known, so
that a member that was slow once is measured again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from msgspec import Struct

from skerry.functions import qos
from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, Candidate, CandidateView
from skerry.functions.continuum.policy import RUN, Offload, RejectCall, RoutingDecision
from skerry.functions.qos import QosClass
from skerry.model.ids import NodeId

_EXPLORE_EVERY = 64  # every so many calls one goes where the least is known
_AFFORDS = 0.9  # of the best probability to be in time: a call with that much elsewhere can afford it
_TRIED = 4  # places after the best that a call may be handed on to
_MEMORY = 0.02  # the weight of the newest call in averages
_PLACES = 256  # remembered at most
_TIME_COST = 0.1  # of the utility: what an answer at once is worth more than one at the last moment
_INSTANT_S = 1e-6  # what is left of a deadline that is over, so that one can still divide by it
_LOAD_PRICE = 0.5  # of its time: others wait for what is left of it, which is half, on average


class ScoredCandidate(Struct, frozen=True, gc=False):
    """A candidate, and the expected result of the call there."""

    worth: float  # what is to be expected, less what others lose
    in_time: float  # how likely that is
    work: float  # core-seconds; memory counts as the cores that have no use without it
    known: float
    has_room: bool
    place: Candidate


class QosAware:
    """Remembers how crowded each place was, and what the calls that come here are worth."""

    name = "qosaware"

    def __init__(self, classes: Sequence[QosClass]) -> None:
        self._classes = tuple(classes)
        self._count = 0
        self._load_share: dict[NodeId, float] = {}  # the recent share of calls without capacity
        self._utility = 0.0  # of a call, on average of late
        self._work = 0.0  # of a call, likewise

    def decide(self, demand: CallDemand, view: CandidateView, call_times: CallTimeModel) -> RoutingDecision:
        qos_class = qos.class_of_call(self._classes, demand.qos_class)
        deadline_s = qos_class.deadline_s
        if demand.deadline_s is not None:
            deadline_s = max(_INSTANT_S, min(deadline_s, demand.deadline_s))
        options = self._options(demand, view, call_times, qos_class.utility, deadline_s)
        if not options:
            return RUN  # the queue's error has the limits
        best = max(options, key=_by_worth)
        self._utility += _MEMORY * (qos_class.utility - self._utility)
        self._work += _MEMORY * (best.work - self._work)
        if best.worth <= 0.0:
            free = [option for option in options if option.has_room]
            if not free:
                return RejectCall(_reason(qos_class, deadline_s, best))
            best = max(free, key=_by_worth)  # there it displaces nothing
        self._count += 1
        if self._count % _EXPLORE_EVERY == 0:
            best = _least_known(options, best)
        return RUN if best.place.is_here else _offload(best, options, view.here)

    def _options(
        self,
        demand: CallDemand,
        view: CandidateView,
        call_times: CallTimeModel,
        utility: float,
        deadline_s: float,
    ) -> list[ScoredCandidate]:
        price = _LOAD_PRICE * self._utility / self._work if self._work else 0.0
        load_share = self._load_share
        if len(load_share) > _PLACES:
            load_share.clear()
        options = []
        for place in (view.here, *view.neighbours, *view.remote) if demand.may_leave else (view.here,):
            if not place.is_up or not place.could_ever_run(demand):
                continue
            has_room = place.has_room(demand)
            crowded = load_share.get(place.node, 0.0)
            crowded += _MEMORY * ((0.0 if has_room else 1.0) - crowded)
            load_share[place.node] = crowded
            prediction = call_times.predict(demand, place)
            busy_s = prediction.start_s + prediction.run_s
            total_s = busy_s + prediction.queue_s + prediction.network_s
            in_time = (1.0 - prediction.refusal) * chance_in_time(total_s, prediction.spread, deadline_s)
            time_cost = _TIME_COST * total_s / deadline_s if total_s < deadline_s else _TIME_COST
            cores = demand.memory * place.cpus_total / place.memory_total
            work = busy_s * (cores if cores > demand.cpu else demand.cpu)
            worth = utility * (in_time - time_cost) - price * crowded * work
            options.append(ScoredCandidate(worth, in_time, work, prediction.known, has_room, place))
        return options


_by_worth = attrgetter("worth")


def _reason(qos_class: QosClass, deadline_s: float, best: ScoredCandidate) -> str:
    return (
        f"all nodes are busy with calls worth more, or none would answer it in {deadline_s:g} s (class "
        f"{qos_class.name}; the best chance is {best.in_time:.0%}); call again later, with more time or in "
        "another class"
    )


def _least_known(options: Sequence[ScoredCandidate], best: ScoredCandidate) -> ScoredCandidate:
    """The candidate of which the least is known, among those that have capacity and are about as good as the
    best."""
    enough = _AFFORDS * best.in_time
    fair = [option for option in options if option.has_room and option.in_time >= enough]
    return min(fair, key=lambda option: option.known, default=best)


def _offload(best: ScoredCandidate, options: list[ScoredCandidate], here: Candidate) -> RoutingDecision:
    """To the best, then to the next ones that are worth it, and at last here if that is."""
    others = sorted((option for option in options if option.worth > 0.0), key=_by_worth, reverse=True)
    tried = [option.place.node for option in others if option is not best]
    if here.node in tried[_TRIED:]:
        tried[_TRIED - 1] = here.node
    return Offload(best.place.node, tuple(tried[:_TRIED]))


def chance_in_time(mean_s: float, spread_s: float, deadline_s: float) -> float:
    """How likely something is over within `deadline_s` that takes `mean_s` on average.

    Times are never negative and mostly short, with a long tail: their logarithm is taken to be normal.
    """
    if mean_s <= 0.0 or mean_s + 8.0 * spread_s <= deadline_s:
        return 1.0  # but for two in a thousand at most, and most calls have time enough
    ratio = spread_s / mean_s
    variance = math.log1p(ratio * ratio)
    if variance < 1e-12:
        return 1.0 if mean_s <= deadline_s else 0.0
    off = math.log(deadline_s / mean_s) + variance / 2.0
    return 0.5 + 0.5 * math.erf(off / math.sqrt(2.0 * variance))
