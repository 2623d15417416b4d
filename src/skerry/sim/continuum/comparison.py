"""Policies tried on the same calls: edge sites and a cloud in simulated time, and what came of it.

Every call is decided on where it comes to, by the code that a node runs, with a view as old as a node's would
be. `skerry.sim.continuum.sites` are the nodes, `skerry.sim.continuum.call_generator` the calls;
`skerry.cli.commands.sim_continuum` shows the outcome. The same seed gives the same calls to every policy, and
the same outcome again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from skerry.functions.continuum.call_time_model import observation_of
from skerry.functions.continuum.candidates import CallDemand, Candidate
from skerry.functions.continuum.policy import Offload, RejectCall
from skerry.functions.qos import QosClass
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallRequest
from skerry.sim import simulated_time
from skerry.sim.continuum import call_generator, sites
from skerry.sim.continuum.call_generator import CLASSES, SimulatedCall
from skerry.sim.continuum.sites import ContinuumTopology, NeighbourView, SimulatedSite

_FORWARDING_S = 0.001  # what it costs to hand a call on, beyond the way


class PolicyResult(Struct, frozen=True):
    """What became of all calls under one policy."""

    policy: str
    calls: int
    utility: float  # the share that was had of all that there was
    p50_s: float  # response times of the calls that were answered
    p95_s: float
    late: int  # ended because their time was over
    dropped: int  # refused, or never got a worker
    cold: int
    offloaded: int


def compare(
    policies: Sequence[str],
    continuum: ContinuumTopology,
    *,
    load: float,
    for_s: float,
    seed: int,
) -> Iterator[PolicyResult]:
    """What each policy makes of the same calls, which would keep `load` times the cores of all edges busy."""
    calls = call_generator.draw_calls(
        [share for area in continuum.edges for share in area.shares()],
        sum(area.nodes * area.cpus for area in continuum.edges),
        load=load,
        for_s=for_s,
        chance=_chance("calls", seed),
    )
    for policy in policies:
        yield simulated_time.run(_try(policy, continuum, calls, seed), seed=seed)


def _chance(what: str, seed: int) -> random.Random:
    """Each thing that is left to chance has its own, so that none depends on how often others asked."""
    return random.Random(f"{what} {seed}")  # noqa: S311 - not for secrets


async def _try(
    policy: str, continuum: ContinuumTopology, calls: Sequence[SimulatedCall], seed: int
) -> PolicyResult:
    loop = asyncio.get_running_loop()
    clock = simulated_time.LoopClock(loop)
    nodes = sites.build(
        continuum, policy, call_generator.function_profiles(), CLASSES, clock, _chance("ways", seed)
    )
    trial = PolicyTrial(continuum, nodes, _chance("jitter", seed))
    background = [
        loop.create_task(trial.send_heartbeats()),
        *(loop.create_task(node.invoker.run()) for node in nodes),
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                await asyncio.sleep(call.at_s - loop.time())
                group.create_task(trial.serve(call))
    finally:
        await cancel_and_wait(background)
        for node in nodes:
            await node.invoker.close()
    return trial.outcome(policy)


class PolicyTrial:
    """All calls under one policy, and the count of what became of them."""

    def __init__(
        self, continuum: ContinuumTopology, nodes: Sequence[SimulatedSite], chance: random.Random
    ) -> None:
        self._continuum = continuum
        self._nodes = {node.name: node for node in nodes}
        self._chance = chance
        self._time = asyncio.get_running_loop().time
        self._calls = 0
        self._possible = 0.0  # utility, if every call were answered in time
        self._utility = 0.0
        self._responses: list[float] = []
        self._late = 0
        self._dropped = 0
        self._cold = 0
        self._offloaded = 0

    async def send_heartbeats(self) -> None:
        """Let every node tell the others how it is doing, for ever."""
        while True:
            await asyncio.sleep(self._continuum.beat_s)
            statuses = {name: node.invoker.status() for name, node in self._nodes.items()}
            for node in self._nodes.values():
                for view_of_neighbour in node.neighbour_views():
                    view_of_neighbour.update_load(statuses[view_of_neighbour.site.name], self._time())

    async def serve(self, call: SimulatedCall) -> None:
        """One call, from its arrival to its end."""
        node = self._nodes[call.node]
        qos_class = CLASSES[call.program.qos_class]
        arrived = self._time()
        until = arrived + qos_class.deadline_s
        demand = _demand(call, qos_class.deadline_s)
        view = node.view(demand, arrived)
        decision = node.policy.decide(demand, view, node.call_times)
        if isinstance(decision, RejectCall):
            report = None
        elif isinstance(decision, Offload):
            places = {place.node: place for place in (view.here, *view.neighbours, *view.remote)}
            tried = [places[name] for name in (decision.node, *decision.or_else)]
            report = await self._forward(node, call, demand, tried, until)
        else:
            report = await self._run(node, call, demand, view.here, until)
        self._count(report, qos_class, self._time() - arrived)

    async def _run(
        self, node: SimulatedSite, call: SimulatedCall, demand: CallDemand, here: Candidate, until: float
    ) -> CallReport | None:
        """At this node; None if it refuses."""
        request = CallRequest(
            demand.function,
            b"%.6f" % call.run_s,
            qos_class=demand.qos_class,
            max_response_s=max(0.0, until - self._time()),
        )
        try:
            report = await node.invoker.invoke(request)
        except errors.Overloaded:
            return None
        node.call_times.record(demand, here, observation_of(report, report.response_s))
        return report

    async def _forward(
        self,
        node: SimulatedSite,
        call: SimulatedCall,
        demand: CallDemand,
        tried: Sequence[Candidate],
        until: float,
    ) -> CallReport | None:
        """At the first of these that takes it; None if all refuse, or its time is over before one does."""
        neighbour_views = {
            view_of_neighbour.site.name: view_of_neighbour for view_of_neighbour in node.neighbour_views()
        }
        for place in tried:
            sent = self._time()
            if sent >= until:
                return None
            if place.is_here:
                return await self._run(node, call, demand, place, until)
            view_of_neighbour = neighbour_views[place.node]
            view_of_neighbour.send(demand)
            report = await self._call_neighbour(view_of_neighbour, call, demand, until)
            if report is not None:
                self._offloaded += 1
                node.call_times.record(demand, place, observation_of(report, self._time() - sent))
                return report
            node.call_times.record_refusal(place)
        return None

    async def _call_neighbour(
        self, view_of_neighbour: NeighbourView, call: SimulatedCall, demand: CallDemand, until: float
    ) -> CallReport | None:
        """There and back."""
        there = view_of_neighbour.site
        await asyncio.sleep(
            self._one_way_s(view_of_neighbour) + call.params_bytes * self._continuum.per_byte_s
        )
        now = self._time()
        demand = msgspec.structs.replace(demand, deadline_s=until - now, hops_left=demand.hops_left - 1)
        view = there.view(demand, now)
        report = None
        if not isinstance(there.policy.decide(demand, view, there.call_times), RejectCall):
            report = await self._run(there, call, demand, view.here, until)
        await asyncio.sleep(self._one_way_s(view_of_neighbour))
        view_of_neighbour.receive(demand)
        return report

    def _one_way_s(self, view_of_neighbour: NeighbourView) -> float:
        trip_s = view_of_neighbour.rtt_s / 2
        return _FORWARDING_S / 2 + trip_s * (1.0 + self._continuum.jitter * self._chance.expovariate(1.0))

    def _count(self, report: CallReport | None, qos_class: QosClass, took_s: float) -> None:
        self._calls += 1
        self._possible += qos_class.utility
        if report is None or report.answer.failure is CallFailure.NO_ROOM:
            self._dropped += 1
            return
        self._cold += report.init_s > 0
        if report.answer.failure is None:
            self._responses.append(took_s)
            if took_s <= qos_class.deadline_s:
                self._utility += qos_class.utility
                return
        self._late += 1

    def outcome(self, policy: str) -> PolicyResult:
        """So far."""
        responses = sorted(self._responses)
        return PolicyResult(
            policy,
            self._calls,
            self._utility / self._possible if self._possible else 1.0,
            _quantile(responses, 0.5),
            _quantile(responses, 0.95),
            self._late,
            self._dropped,
            self._cold,
            self._offloaded,
        )


def _demand(call: SimulatedCall, deadline_s: float) -> CallDemand:
    function = call.program.function
    return CallDemand(
        function.name,
        function.memory,
        (function.cpu or 0) / 1000,
        call.params_bytes,
        call.program.qos_class,
        deadline_s,
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))] if ordered else 0.0
