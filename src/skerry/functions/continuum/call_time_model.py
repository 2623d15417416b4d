"""Times of calls by function and member, and predictions for the next one.

The result of every call is recorded (`saw`, `refused`); policies use `predict`. Where little is known of a
function at a member, its times at all members are used, and without any, an optimistic guess, so that the
member is tried. A measurement loses weight with every call that went to another member since, so that a
member that was slow once is not avoided for good. The time of day plays no part, and memory is bounded: the
least recently used is dropped.
"""

from __future__ import annotations

import math

from msgspec import Struct

from skerry.functions.continuum.candidates import CallDemand, Candidate
from skerry.model.calls import CallReport
from skerry.model.ids import FunctionName, NodeId

_RUN_S = 0.1  # of a function of which nothing is known
_START_S = 0.25  # of its workers
_PER_BYTE_S = 1e-8  # of a link of which nothing is known: about a gigabit
_WARM_IF_REPORTED = 0.9  # how likely a worker that was reported as idle still is
_WARM_IF_NOT = 0.1
_MEMORY = 40.0  # so many measurements back counts about a third
_GUESS = 0.25  # of a measurement: how much a first guess counts
_TRUST = 1.0  # how many measurements at a place it takes to outweigh those made elsewhere
_HALF_LIFE = 300.0  # calls that went elsewhere, until what was seen counts half
_LARGE = 16 * 1024  # bytes: below, the transfer time says nothing about the bandwidth
_CLASSES = 16  # that have queues of their own; those above count as the last


class CallObservation(Struct, frozen=True, gc=False):
    """How a call went."""

    queue_s: float = 0.0
    start_s: float | None = None  # of a worker made for it; None: it had a warm one
    run_s: float | None = None  # None: it never began, and `queue_s` is how long it waited
    network_s: float = 0.0  # all the rest of the time that it was away


def observation_of(report: CallReport, took_s: float) -> CallObservation:
    """The measurement of a call with this report, whose response came `took_s` after it was sent."""
    rest_s = took_s - report.queueing_s - report.init_s - report.answer.duration_s
    has_begun = report.is_warm or report.init_s > 0.0
    return CallObservation(
        report.queueing_s,
        None if report.is_warm else report.init_s,
        report.answer.duration_s if has_begun else None,
        max(0.0, rest_s),
    )


class CallTimePrediction(Struct, frozen=True, gc=False):
    """What a call will take at a place."""

    queue_s: float
    start_s: float
    run_s: float
    network_s: float
    spread: float  # the standard deviation of their sum, in seconds
    refusal: float = 0.0  # how likely the place is to refuse it
    known: float = 0.0  # how many measurements this rests on, by what they still count

    @property
    def total_s(self) -> float:
        return self.queue_s + self.start_s + self.run_s + self.network_s


class RunningStatistics:
    """A moving mean with its variance; the newest counts most, and the first ones count in full."""

    __slots__ = ("mean", "variance", "weight")

    def __init__(self, mean: float, variance: float, weight: float = 0.0) -> None:
        self.mean = mean
        self.variance = variance
        self.weight = weight

    def add(self, value: float) -> None:
        weight = self.weight = min(self.weight + 1.0, _MEMORY)
        off = value - self.mean
        self.mean += off / weight
        self.variance += (off * (value - self.mean) - self.variance) / weight


class _Function:
    """A function anywhere, and at each place."""

    __slots__ = ("calls", "pairs", "run", "start")

    def __init__(self, run_s: float, start_s: float) -> None:
        self.calls = 0
        self.run = RunningStatistics(run_s, run_s * run_s, _GUESS)
        self.start = RunningStatistics(start_s, start_s * start_s, _GUESS)
        self.pairs: dict[NodeId, _Pair] = {}  # the last one is the one seen last


class _Pair:
    """A function at a place; it begins with what is known of the function anywhere."""

    __slots__ = ("run", "seen_at", "start", "warm_if_not", "warm_if_reported")

    def __init__(self, function: _Function) -> None:
        self.seen_at = function.calls
        self.run = RunningStatistics(function.run.mean, function.run.variance)
        self.start = RunningStatistics(function.start.mean, function.start.variance, _GUESS)
        self.warm_if_reported = RunningStatistics(_WARM_IF_REPORTED, 0.0, _GUESS)
        self.warm_if_not = RunningStatistics(_WARM_IF_NOT, 0.0, _GUESS)

    def fade(self, share: float) -> None:
        for measure in (self.run, self.start, self.warm_if_reported, self.warm_if_not):
            measure.weight *= share


class _Node:
    """A place, whatever is called there."""

    __slots__ = ("overhead", "paces", "per_byte", "refusal", "seen_at", "waits")

    def __init__(self) -> None:
        self.seen_at = 0  # of all calls
        self.refusal = RunningStatistics(0.0, 0.0)
        self.overhead = RunningStatistics(0.0, 0.0)  # of the network beyond the round trip, of small calls
        self.per_byte = RunningStatistics(_PER_BYTE_S, 0.0, _GUESS)
        self.waits = [
            RunningStatistics(0.0, 0.0) for _ in range(_CLASSES)
        ]  # in the queue, if there seemed to be capacity
        self.paces = [
            RunningStatistics(0.0, 0.0) for _ in range(_CLASSES)
        ]  # else, for each that waited there before

    def fade(self, share: float) -> None:
        for measure in (self.refusal, *self.waits, *self.paces):
            measure.weight *= share


_NO_NODE = _Node()


class CallTimeModel:
    """The measurements of a node."""

    def __init__(self, *, max_functions: int = 512, max_places: int = 64) -> None:
        self._max_functions = max_functions
        self._max_places = max_places
        self._calls = 0
        self._any = _Function(_RUN_S, _START_S)  # what to expect of one that was never seen
        self._functions: dict[FunctionName, _Function] = {}  # the last one is the one seen last
        self._nodes: dict[NodeId, _Node] = {}  # likewise

    def __len__(self) -> int:
        """The number of pairs of function and member with measurements."""
        return sum(len(function.pairs) for function in self._functions.values())

    # What happened

    def record(self, demand: CallDemand, place: Candidate, seen: CallObservation) -> None:
        """Record a call at `place`, which is the view of the member at the decision.

        Values come from other nodes: impossible ones are ignored, because they would never fade.
        """
        if not all(0.0 <= part < math.inf for part in _parts(seen)):
            return
        node = self._node(place.node)
        node.refusal.add(0.0)
        qos_class = min(demand.qos_class, _CLASSES - 1)
        if place.has_room(demand):
            node.waits[qos_class].add(seen.queue_s)
        else:
            node.paces[qos_class].add(seen.queue_s / (place.waiting + 1))
        if seen.run_s is None:
            return
        self._record_run(demand, place, seen, seen.run_s)
        if not place.is_here:
            beyond = max(0.0, seen.network_s - place.rtt_s)
            if demand.params_bytes < _LARGE:
                node.overhead.add(beyond)
            else:
                node.per_byte.add(max(0.0, beyond - node.overhead.mean) / demand.params_bytes)

    def record_refusal(self, place: Candidate) -> None:
        """Record that it refused a call, or could not be reached."""
        self._node(place.node).refusal.add(1.0)

    def _record_run(self, demand: CallDemand, place: Candidate, seen: CallObservation, run_s: float) -> None:
        function = self._function(demand.function)
        function.calls += 1
        pair = self._pair(function, place.node)
        for known in (self._any.run, function.run, pair.run):
            known.add(run_s)
        is_cold = seen.start_s is not None
        (pair.warm_if_reported if place.warm or place.seats else pair.warm_if_not).add(
            0.0 if is_cold else 1.0
        )
        if seen.start_s is not None:
            for known in (self._any.start, function.start, pair.start):
                known.add(seen.start_s)

    def _function(self, name: FunctionName) -> _Function:
        function = self._functions.pop(name, None)
        if function is None:
            if len(self._functions) >= self._max_functions:
                del self._functions[next(iter(self._functions))]
            function = _Function(self._any.run.mean, self._any.start.mean)
        self._functions[name] = function
        return function

    def _pair(self, function: _Function, node: NodeId) -> _Pair:
        pair = function.pairs.pop(node, None)
        if pair is None:
            if len(function.pairs) >= self._max_places:
                del function.pairs[next(iter(function.pairs))]
            pair = _Pair(function)
        else:
            pair.fade(_HALF_LIFE / (_HALF_LIFE + function.calls - pair.seen_at - 1))
        pair.seen_at = function.calls
        function.pairs[node] = pair
        return pair

    def _node(self, name: NodeId) -> _Node:
        self._calls += 1
        node = self._nodes.pop(name, None)
        if node is None:
            if len(self._nodes) >= self._max_places:
                del self._nodes[next(iter(self._nodes))]
            node = _Node()
        else:
            node.fade(_HALF_LIFE / (_HALF_LIFE + self._calls - node.seen_at - 1))
        node.seen_at = self._calls
        self._nodes[name] = node
        return node

    # What will happen

    def predict(self, demand: CallDemand, place: Candidate) -> CallTimePrediction:
        """What the call would take there."""
        function = self._functions.get(demand.function, self._any)
        run_s, variance, start_s = function.run.mean, function.run.variance, function.start.mean
        is_warm = place.warm or place.seats
        warm = _WARM_IF_REPORTED if is_warm else _WARM_IF_NOT
        known = 0.0
        pair = function.pairs.get(place.node)
        if pair is not None:
            known = pair.run.weight * _HALF_LIFE / (_HALF_LIFE + function.calls - pair.seen_at)
            share = known / (known + _TRUST)
            run_s += share * (pair.run.mean - run_s)
            variance += share * (pair.run.variance - variance)
            start_s += share * (pair.start.mean - start_s)
            warm += share * ((pair.warm_if_reported if is_warm else pair.warm_if_not).mean - warm)
        cold = 1.0 - warm
        variance += cold * (function.start.variance + warm * start_s * start_s)

        node = self._nodes.get(place.node, _NO_NODE)
        counts = _HALF_LIFE / (_HALF_LIFE + self._calls - node.seen_at)
        qos_class = demand.qos_class if demand.qos_class < _CLASSES else -1
        if place.has_room(demand):
            wait = node.waits[qos_class]
            share = wait.weight * counts / (wait.weight * counts + _TRUST)
            queue_s = wait.mean * share
            variance += wait.variance * share
        else:
            wait = node.paces[qos_class]
            share = wait.weight * counts / (wait.weight * counts + _TRUST)
            pace_s = run_s / _seats(demand, place)
            queue_s = (pace_s + share * (wait.mean - pace_s)) * (place.waiting + 1)
            variance += queue_s * queue_s  # as of one that waits for something that comes by chance
        network_s = 0.0
        if not place.is_here:
            network_s = place.rtt_s + node.overhead.mean + node.per_byte.mean * demand.params_bytes
        refusal = node.refusal.mean
        if refusal:
            refusal *= node.refusal.weight * counts / (node.refusal.weight * counts + _TRUST)
        return CallTimePrediction(
            queue_s, cold * start_s, run_s, network_s, math.sqrt(variance), refusal, known
        )


def _parts(seen: CallObservation) -> tuple[float, ...]:
    return (seen.queue_s, seen.start_s or 0.0, seen.run_s or 0.0, seen.network_s)


def _seats(demand: CallDemand, place: Candidate) -> float:
    """How many of such calls the place runs at once, if it runs nothing else."""
    by_memory = place.memory_total / demand.memory
    by_cpu = place.cpus_total / demand.cpu if demand.cpu else by_memory
    return max(1.0, min(by_memory, by_cpu))
