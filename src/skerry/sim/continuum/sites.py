"""Nodes of a simulated continuum: areas, the ways between them, and what each node knows of the others.

Each node has the queue, the pool and the dispatcher of a real one (`skerry.functions.invocation.invoker`),
the real policy and the real memory of what was measured; only its workers pretend. Of others it knows what
they last said, and what it has sent there since. How they come to say it is
`skerry.sim.continuum.comparison`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec import Struct

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, Candidate, CandidateView
from skerry.functions.continuum.policies import loading
from skerry.functions.continuum.policy import RoutingPolicy
from skerry.functions.invocation.invoker import Invoker, PoolStatus
from skerry.functions.qos import QosClass
from skerry.kit.clock import Clock
from skerry.model.ids import NodeId
from skerry.model.settings import FunctionSettings
from skerry.sim.continuum.call_generator import FunctionProfile
from skerry.sim.continuum.fake_workers import FakeFunctionLookup, FakeWorkerHost

_HOT_SHARE = 0.7  # of the calls of an area: those that come to its first node


class Area(Struct, frozen=True):
    """Nodes at one site, all alike."""

    name: str
    nodes: int
    cpus: float
    memory_mb: int
    remote: str = ""  # the area that it may send calls to; one that has none is a cloud, and gets no others
    share: float = 1.0  # of the calls of all edges

    def names(self) -> list[NodeId]:
        return [NodeId(f"{self.name}-{number}") for number in range(self.nodes)]

    def shares(self) -> list[tuple[NodeId, float]]:
        """Which part of all calls comes to which node: crowds gather somewhere."""
        first, *others = self.names()
        hot_share = self.share * _HOT_SHARE if others else self.share
        return [(first, hot_share), *((name, (self.share - hot_share) / len(others)) for name in others)]


class ContinuumTopology(Struct, frozen=True):
    """All areas, and how far they are from each other: round trips are drawn between two bounds."""

    areas: tuple[Area, ...] = (
        Area("harbour", 2, cpus=4, memory_mb=2048, remote="cloud", share=0.5),
        Area("market", 2, cpus=4, memory_mb=2048, remote="cloud", share=0.3),
        Area("station", 2, cpus=4, memory_mb=2048, remote="cloud", share=0.2),
        Area("cloud", 2, cpus=8, memory_mb=8192),
    )
    rtt_within_s: tuple[float, float] = (0.001, 0.006)
    rtt_remote_s: tuple[float, float] = (0.04, 0.12)
    jitter: float = 0.2  # of every trip, as a share of it, on average
    per_byte_s: float = 8e-8  # 100 Mbit/s
    beat_s: float = FunctionSettings().ping_s  # between two words of a node to all others
    keep_alive_s: float = 60.0
    queue_length: int = 64

    @property
    def edges(self) -> list[Area]:
        """The areas that are called."""
        return [area for area in self.areas if area.remote]


class SimulatedSite:
    """One node."""

    def __init__(self, name: NodeId, area: Area, invoker: Invoker, policy: RoutingPolicy) -> None:
        self.name = name
        self.area = area
        self.invoker = invoker
        self.policy = policy
        self.call_times = CallTimeModel()
        self.neighbours: list[NeighbourView] = []
        self.remote: list[NeighbourView] = []

    def here(self, demand: CallDemand) -> Candidate:
        status = self.invoker.status()
        return _place(self, status, demand, memory_mb=status.available_memory_mb, cpus=_cpus_free(status))

    def view(self, demand: CallDemand, now: float) -> CandidateView:
        return CandidateView(
            self.here(demand),
            tuple(view_of_neighbour.place(demand, now) for view_of_neighbour in self.neighbours),
            tuple(view_of_neighbour.place(demand, now) for view_of_neighbour in self.remote),
        )

    def neighbour_views(self) -> list[NeighbourView]:
        """Of all others that it knows."""
        return [*self.neighbours, *self.remote]


class NeighbourView:
    """What a node knows of another."""

    def __init__(self, site: SimulatedSite, rtt_s: float) -> None:
        self.site = site
        self.rtt_s = rtt_s
        self.update_load(site.invoker.status(), 0.0)

    def update_load(self, status: PoolStatus, at: float) -> None:
        """The other member reported its state at that moment."""
        self.reported_at = at
        self._status = status
        self._memory_free = status.available_memory_mb
        self._cpus_free = _cpus_free(status)

    def send(self, demand: CallDemand) -> None:
        """A call goes there: it uses resources there long before the other reports it."""
        self._memory_free = max(0, self._memory_free - demand.memory)
        self._cpus_free = max(0.0, self._cpus_free - demand.cpu)

    def receive(self, demand: CallDemand) -> None:
        """It has come back, and its room is free again for all that is known."""
        self._memory_free = min(self._status.total_memory_mb, self._memory_free + demand.memory)
        self._cpus_free = min(self._status.total_cpus, self._cpus_free + demand.cpu)

    def place(self, demand: CallDemand, now: float) -> Candidate:
        return _place(
            self.site,
            self._status,
            demand,
            memory_mb=self._memory_free,
            cpus=self._cpus_free,
            rtt_s=self.rtt_s,
            heard_s=now - self.reported_at,
        )


def _place(
    site: SimulatedSite,
    status: PoolStatus,
    demand: CallDemand,
    *,
    memory_mb: int,
    cpus: float,
    rtt_s: float = 0.0,
    heard_s: float = 0.0,
) -> Candidate:
    return Candidate(
        node=site.name,
        area=site.area.name,
        is_here=not rtt_s,
        memory_total=status.total_memory_mb,
        memory_free=memory_mb,
        cpus_total=status.total_cpus,
        cpus_free=cpus,
        warm=status.warm.get(demand.function, 0),
        waiting=status.queue_length,
        rtt_s=rtt_s,
        heard_s=heard_s,
    )


def _cpus_free(status: PoolStatus) -> float:
    return status.total_cpus - status.used_cpus


def build(
    continuum: ContinuumTopology,
    policy: str,
    known: Sequence[FunctionProfile],
    classes: Sequence[QosClass],
    clock: Clock,
    chance: random.Random,
) -> list[SimulatedSite]:
    """All nodes, each with what it knows of its neighbours and of its remote area, nearest first."""
    settings = FunctionSettings(
        keep_alive_s=continuum.keep_alive_s,
        queue_length=continuum.queue_length,
        classes=tuple(map(str, classes)),
    )
    host = FakeWorkerHost({one.function.name: one.start_s for one in known})
    functions = FakeFunctionLookup({one.function.name: one.function for one in known})
    sites: list[SimulatedSite] = []
    for area in continuum.areas:
        for name in area.names():
            invoker = Invoker(
                host, functions, settings, clock, node=name, memory_mb=area.memory_mb, cpus=area.cpus
            )
            site = SimulatedSite(name, area, invoker, loading.load_policy(policy, classes))
            for other in sites:
                _introduce(site, other, continuum, chance)
            sites.append(site)
    for site in sites:
        site.neighbours.sort(key=lambda view_of_neighbour: view_of_neighbour.rtt_s)
        site.remote.sort(key=lambda view_of_neighbour: view_of_neighbour.rtt_s)
    return sites


def _introduce(
    one: SimulatedSite, other: SimulatedSite, continuum: ContinuumTopology, chance: random.Random
) -> None:
    """They know each other within an area; beyond, whoever may send calls knows whom to send them to."""
    if one.area is other.area:
        rtt_s = chance.uniform(*continuum.rtt_within_s)
        one.neighbours.append(NeighbourView(other, rtt_s))
        other.neighbours.append(NeighbourView(one, rtt_s))
        return
    rtt_s = chance.uniform(*continuum.rtt_remote_s)
    for site, peer in ((one, other), (other, one)):
        if site.area.remote == peer.area.name:
            site.remote.append(NeighbourView(peer, rtt_s))
