"""Nodes of a simulated continuum: areas, the way between them, and what each node knows of the others.

Each node has the queue, the pool and the dispatcher of a real one (`skerry.functions.invoking`), the real
policy and the real memory of what was measured; only its workers pretend, and the way to another node is a
pause. Of others it knows what they last said: on a beat, and with every answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec import Struct

from skerry.functions.continuum.classes import QosClass
from skerry.functions.continuum.learning import Learnt
from skerry.functions.continuum.policies import choosing
from skerry.functions.continuum.views import Demand, Place, Policy, View
from skerry.functions.invoking import Invoker, PoolStatus
from skerry.kit.clock import Clock
from skerry.model.ids import NodeId
from skerry.model.settings import FunctionSettings
from skerry.sim.callers import Program
from skerry.sim.pretenders import PretendedHost, Shelf


class Area(Struct, frozen=True):
    """Nodes at one site, all alike."""

    name: str
    nodes: int
    cpus: float
    memory_mb: int
    remote: str = ""  # the area that it may send calls to; an area without one is a cloud
    share: float = 1.0  # of the calls of all edges


class Continuum(Struct, frozen=True):
    """All areas, and the ways between them in seconds there and back."""

    areas: tuple[Area, ...] = (
        Area("harbour", 2, cpus=4, memory_mb=2048, remote="cloud", share=0.5),
        Area("market", 2, cpus=4, memory_mb=2048, remote="cloud", share=0.3),
        Area("station", 2, cpus=4, memory_mb=2048, remote="cloud", share=0.2),
        Area("cloud", 2, cpus=8, memory_mb=8192),
    )
    rtt_within_s: tuple[float, float] = (0.001, 0.006)  # from, to: drawn for each pair of nodes
    rtt_remote_s: tuple[float, float] = (0.04, 0.12)
    jitter: float = 0.2  # of each trip, as a share of it, on average
    per_byte_s: float = 8e-8  # 100 Mbit/s
    beat_s: float = 1.0  # between two words of a node to all others
    keep_alive_s: float = 60.0
    queue_length: int = 64


class Sighting:
    """What a node knows of another."""

    __slots__ = ("cpu_sent", "heard_at", "memory_sent", "rtt_s", "site", "status")

    def __init__(self, site: Site, rtt_s: float) -> None:
        self.site = site
        self.rtt_s = rtt_s
        self.hear(site.status(), 0.0)

    def hear(self, status: PoolStatus, now: float) -> None:
        self.status = status
        self.heard_at = now
        self.memory_sent = 0  # what our own calls have taken since, which it has not told us of
        self.cpu_sent = 0.0

    def send(self, demand: Demand) -> None:
        self.memory_sent += demand.memory
        self.cpu_sent += demand.cpu

    def place(self, demand: Demand, now: float) -> Place:
        return _place(
            self.site, self.status, demand, self.rtt_s, now - self.heard_at, self.memory_sent, self.cpu_sent
        )


class Site:
    """One node."""

    def __init__(self, name: NodeId, area: Area, invoker: Invoker, policy: Policy) -> None:
        self.name = name
        self.area = area
        self.invoker = invoker
        self.policy = policy
        self.learnt = Learnt()
        self.neighbours: list[Sighting] = []
        self.remote: list[Sighting] = []

    def status(self) -> PoolStatus:
        return self.invoker.status()

    def here(self, demand: Demand) -> Place:
        return _place(self, self.status(), demand, 0.0, 0.0, 0, 0.0)

    def view(self, demand: Demand, now: float) -> View:
        return View(
            self.here(demand),
            tuple(sighting.place(demand, now) for sighting in self.neighbours),
            tuple(sighting.place(demand, now) for sighting in self.remote),
        )

    def sighting(self, node: NodeId) -> Sighting:
        return next(one for one in (*self.neighbours, *self.remote) if one.site.name == node)


def _place(
    site: Site,
    status: PoolStatus,
    demand: Demand,
    rtt_s: float,
    heard_s: float,
    memory_sent: int,
    cpu_sent: float,
) -> Place:
    return Place(
        node=site.name,
        area=site.area.name,
        is_here=rtt_s == 0.0,
        memory_total=status.total_memory_mb,
        memory_free=max(0, status.available_memory_mb - memory_sent),
        cpus_total=status.total_cpus,
        cpus_free=max(0.0, status.total_cpus - status.used_cpus - cpu_sent),
        warm=status.warm.get(demand.function, 0),
        waiting=status.queue_length,
        rtt_s=rtt_s,
        heard_s=heard_s,
    )


def build(
    continuum: Continuum,
    policy: str,
    known: Sequence[Program],
    classes: Sequence[QosClass],
    clock: Clock,
    chance: random.Random,
) -> list[Site]:
    """All nodes, each with what it knows of its neighbours and of its remote area, nearest first."""
    settings = FunctionSettings(
        keep_alive_s=continuum.keep_alive_s,
        queue_length=continuum.queue_length,
        class_weights=tuple(one.weight for one in classes),
    )
    starts_s = {str(one.function.name): one.start_s for one in known}
    shelf = Shelf({one.function.name: one.function for one in known})
    sites = []
    for area in continuum.areas:
        for number in range(area.nodes):
            name = NodeId(f"{area.name}-{number}")
            invoker = Invoker(
                PretendedHost(starts_s),
                shelf,
                settings,
                clock,
                node=name,
                memory_mb=area.memory_mb,
                cpus=area.cpus,
            )
            sites.append(Site(name, area, invoker, choosing.choose(policy, classes)))
    for index, site in enumerate(sites):
        for other in sites[:index]:
            _introduce(site, other, continuum, chance)
    for site in sites:
        site.neighbours.sort(key=lambda sighting: sighting.rtt_s)
        site.remote.sort(key=lambda sighting: sighting.rtt_s)
    return sites


def _introduce(one: Site, other: Site, continuum: Continuum, chance: random.Random) -> None:
    """Both know each other if one is of the other's area, or of the area that it may send calls to."""
    if one.area is other.area:
        rtt_s = chance.uniform(*continuum.rtt_within_s)
        one.neighbours.append(Sighting(other, rtt_s))
        other.neighbours.append(Sighting(one, rtt_s))
        return
    rtt_s = chance.uniform(*continuum.rtt_remote_s)
    for site, peer in ((one, other), (other, one)):
        if site.area.remote == peer.area.name:
            site.remote.append(Sighting(peer, rtt_s))


def shares(area: Area) -> list[tuple[NodeId, float]]:
    """Who gets which part of the area's calls: half of them come to the first, since crowds gather."""
    rest = area.share / 2 / max(1, area.nodes - 1)
    return [
        (NodeId(f"{area.name}-{number}"), area.share / 2 if number == 0 else rest)
        for number in range(area.nodes)
    ]
