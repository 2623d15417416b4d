"""Policies tried on the same calls: edge sites and a cloud in simulated time, and what came of it.

Every call is decided on where it comes to, by the code that a node runs, with a view as old as a node's
would be. `skerry.sim.sites` are the nodes, `skerry.sim.callers` the calls; `skerry.cli.sim_continuum` shows
the outcome. The same seed gives the same calls to every policy, and the same outcome again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from msgspec import Struct

from skerry.functions.continuum.classes import QosClass
from skerry.functions.continuum.learning import seen_in
from skerry.functions.continuum.views import Demand, Drop, Offload, Place
from skerry.kit.tasks import give_up
from skerry.model import errors
from skerry.model.calls import Ask, Failure, Report
from skerry.sim import callers, sites, times
from skerry.sim.callers import CLASSES, Call
from skerry.sim.sites import Continuum, Site

_OFFLOAD_S = 0.001  # what handing a call over costs, beyond the way


class Outcome(Struct, frozen=True):
    """What became of all calls under one policy."""

    policy: str
    calls: int
    utility: float  # of all that there was, the share that was had
    p50_s: float  # response time of the calls that were answered, in time or not
    p95_s: float
    late: int
    dropped: int
    cold: int
    offloaded: int


class Tally:
    """What became of the calls so far."""

    def __init__(self) -> None:
        self.utility = 0.0
        self.responses: list[float] = []
        self.late = 0
        self.dropped = 0
        self.cold = 0
        self.offloaded = 0


def compare(
    policies: Sequence[str], continuum: Continuum, *, load: float, for_s: float, seed: int
) -> list[Outcome]:
    """What each policy makes of the same calls, which would keep `load` times the cores of all edges busy."""
    edges = [area for area in continuum.areas if area.remote]
    cores = sum(area.nodes * area.cpus for area in edges)
    shares = [(node, share) for area in edges for node, share in sites.shares(area)]
    calls = callers.draw_calls(shares, cores, load=load, for_s=for_s, chance=random.Random(f"calls {seed}"))
    return [times.run(_try(policy, continuum, calls, seed), seed=seed) for policy in policies]


async def _try(policy: str, continuum: Continuum, calls: Sequence[Call], seed: int) -> Outcome:
    loop = asyncio.get_running_loop()
    nodes = sites.build(
        continuum,
        policy,
        callers.programs(),
        CLASSES,
        times.LoopClock(loop),
        random.Random(f"ways {seed}"),
    )
    run = _Run(continuum, nodes, random.Random(f"jitter {seed}"))
    beats = [loop.create_task(run.beat()), *(loop.create_task(node.invoker.run()) for node in nodes)]
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                await asyncio.sleep(call.at_s - loop.time())
                group.create_task(run.serve(call))
    finally:
        await give_up(beats)
        for node in nodes:
            await node.invoker.close()
    return run.outcome(policy, calls)


class _Run:
    """All calls of one policy."""

    def __init__(self, continuum: Continuum, nodes: Sequence[Site], chance: random.Random) -> None:
        self._continuum = continuum
        self._nodes = {node.name: node for node in nodes}
        self._chance = chance
        self._time = asyncio.get_running_loop().time
        self._tally = Tally()

    async def beat(self) -> None:
        """Let every node say how it is doing, for ever."""
        while True:
            await asyncio.sleep(self._continuum.beat_s)
            now = self._time()
            told = {node.name: node.status() for node in self._nodes.values()}
            for node in self._nodes.values():
                for sighting in (*node.neighbours, *node.remote):
                    sighting.hear(told[sighting.site.name], now)

    async def serve(self, call: Call) -> None:
        node = self._nodes[call.node]
        qos = CLASSES[call.program.qos_class]
        arrived = self._time()
        function = call.program.function
        demand = Demand(
            function.name,
            function.memory,
            (function.cpu or 0) / 1000,
            call.params_bytes,
            call.program.qos_class,
            qos.deadline_s,
        )
        view = node.view(demand, arrived)
        decision = node.policy.decide(demand, view, node.learnt)
        if isinstance(decision, Drop):
            report = None
        elif isinstance(decision, Offload):
            places = {place.node: place for place in (view.here, *view.neighbours, *view.remote)}
            chain = [places[name] for name in (decision.node, *decision.or_else)]
            report = await self._hand_on(node, call, demand, chain, arrived)
        else:
            report = await self._run_here(node, call, demand, view.here, arrived)
        self._count(report, qos, self._time() - arrived)

    async def _run_here(
        self, node: Site, call: Call, demand: Demand, place: Place, arrived: float
    ) -> Report | None:
        left_s = qos_left(call, arrived, self._time())
        try:
            report = await node.invoker.invoke(_ask(call, left_s))
        except errors.Overloaded:
            return None
        node.learnt.saw(demand, place, seen_in(report, report.response_s))
        return report

    async def _hand_on(
        self, node: Site, call: Call, demand: Demand, chain: Sequence[Place], arrived: float
    ) -> Report | None:
        for place in chain:
            if place.is_here:
                return await self._run_here(node, call, demand, place, arrived)
            sent = self._time()
            sighting = node.sighting(place.node)
            sighting.send(demand)
            report = await self._visit(sighting, call, demand, arrived)
            if report is not None:
                self._tally.offloaded += 1
                node.learnt.saw(demand, place, seen_in(report, self._time() - sent))
                return report
            node.learnt.refused(place)
            if qos_left(call, arrived, self._time()) <= 0:
                break
        return None

    async def _visit(
        self, sighting: sites.Sighting, call: Call, demand: Demand, arrived: float
    ) -> Report | None:
        """There and back; what the other node says of itself comes back too."""
        there = sighting.site
        await asyncio.sleep(self._way_s(sighting.rtt_s) + call.params_bytes * self._continuum.per_byte_s)
        now = self._time()
        last_hop = Demand(
            demand.function,
            demand.memory,
            demand.cpu,
            demand.params_bytes,
            demand.qos_class,
            qos_left(call, arrived, now),
            demand.may_offload,
            0,
        )
        report = None
        decision = there.policy.decide(last_hop, there.view(last_hop, now), there.learnt)
        if not isinstance(decision, Drop):
            report = await self._run_here(there, call, last_hop, there.here(last_hop), arrived)
        told, told_at = there.status(), self._time()
        await asyncio.sleep(self._way_s(sighting.rtt_s))
        if told_at > sighting.heard_at:
            sighting.hear(told, told_at)
        return report

    def _way_s(self, rtt_s: float) -> float:
        return _OFFLOAD_S / 2 + rtt_s / 2 * (1 + self._chance.expovariate(1 / self._continuum.jitter))

    def _count(self, report: Report | None, qos: QosClass, took_s: float) -> None:
        tally = self._tally
        if report is None or report.answer.failure is Failure.NO_ROOM:
            tally.dropped += 1
            return
        tally.cold += report.init_s > 0
        if report.answer.failure is None:
            tally.responses.append(took_s)
        if report.answer.failure is None and took_s <= qos.deadline_s:
            tally.utility += qos.utility
        else:
            tally.late += 1

    def outcome(self, policy: str, calls: Sequence[Call]) -> Outcome:
        tally = self._tally
        whole = sum(CLASSES[call.program.qos_class].utility for call in calls)
        responses = sorted(tally.responses)
        return Outcome(
            policy,
            len(calls),
            tally.utility / max(whole, 1e-9),
            _quantile(responses, 0.5),
            _quantile(responses, 0.95),
            tally.late,
            tally.dropped,
            tally.cold,
            tally.offloaded,
        )


def qos_left(call: Call, arrived: float, now: float) -> float:
    return CLASSES[call.program.qos_class].deadline_s - (now - arrived)


def _ask(call: Call, left_s: float) -> Ask:
    return Ask(
        call.program.function.name,
        b"%.6f" % call.run_s,
        qos_class=call.program.qos_class,
        max_response_s=left_s,
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
