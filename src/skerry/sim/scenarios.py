"""Whole simulations for people: so many nodes, so many instances, a good day or a bad one.

A good day goes by in real time, on a SQLite store on this machine's disk, so that its rates are those of a
server here. A bad day takes minutes until everything that went wrong is right again, so it goes by in
simulated time, on a store in memory, and is the same again for the same seed. Either way the witness looks
on. `skerry.cli.commands.sim` shows what comes of it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from skerry.control.instance_index import InstanceRecord
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import InstanceId
from skerry.model.resources import Resources, total
from skerry.model.settings import EventSettings, FleetSettings
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import InstanceSpec
from skerry.sim import packing, simulated_time, workload_generator
from skerry.sim.cluster import cloud as cluster_cloud
from skerry.sim.cluster import fault_plan
from skerry.sim.cluster.cloud import SimulatedCloud
from skerry.sim.cluster.fault_injector import FaultInjector
from skerry.sim.cluster.fault_schedule import FaultSchedule
from skerry.store.local.memory import MemoryStore
from skerry.store.sqlite.store import SqliteStore

_SHOW_S = 0.5
_AT_ONCE = 128  # wishes under way
_EVENTS = EventSettings(keep=10_000)
# What is packed against best fit, at most: that one is slow.
_PACKED = 2_000_000
_REST_S = 1800.0


class ScenarioProgress(msgspec.Struct, frozen=True):
    """A cloud at one moment."""

    at_s: float  # since the beginning; simulated, if the day is
    nodes: int  # connected
    counts: dict[str, int]  # instances by status
    placed: int  # so far


class ScenarioResult(msgspec.Struct, frozen=True):
    """What came of a day: what was measured, and what is wrong, if anything is."""

    figures: list[tuple[str, str]]
    wrong: list[str]


ProgressCallback = Callable[[ScenarioProgress], None]


@dataclass
class Scenario:
    """What is to be simulated."""

    nodes: int
    instances: int
    seed: int
    node_resources: list[Resources] = field(init=False)
    specs: list[InstanceSpec] = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - a simulation
        self.node_resources = workload_generator.draw_node_resources(self.nodes, self.chance)
        self.specs = workload_generator.draw_specs(self.instances, self.chance)


async def run_healthy(day: Scenario, folder: Path, show: ProgressCallback) -> ScenarioResult:
    """Nodes join, instances are wished for and run. In real time, on a store in `folder`."""
    clock, began = SystemClock(), time.process_time()
    store = await SqliteStore.open(folder / "store.db", clock)
    faults = FaultSchedule(day.chance)
    try:
        joining = clock.monotonic()
        async with cluster_cloud.running(
            store,
            clock,
            faults,
            fault_plan.healthy_runs(0.2),
            events=_EVENTS,
            node_resources=day.node_resources,
        ) as cloud:
            joined_s = clock.monotonic() - joining
            watch = _Stopwatch(cloud)
            shown = asyncio.ensure_future(_show(cloud, show))
            try:
                creating = clock.monotonic()
                await _create_all(cloud, day.specs)
                created_s = clock.monotonic() - creating
                unrest = await _rest(cloud)
                rest_s = clock.monotonic() - creating
            finally:
                await cancel_and_wait([shown])
            show(_progress(cloud, rest_s))
            figures = [
                ("nodes that joined", f"{day.nodes:,} in {joined_s:.1f} s"),
                ("instances created", f"{day.instances:,}, {day.instances / created_s:,.0f} a second"),
                ("placed", f"{cloud.witness.binds:,}, {watch.placed_per_s():,.0f} a second"),
                ("creation to RUNNING", watch.latencies()),
                *_state(cloud, day),
                ("processor time", f"{time.process_time() - began:.1f} s"),
            ]
            return ScenarioResult(figures, [*cloud.witness.violations, *unrest])
    finally:
        await store.close()


def run_faulty(day: Scenario, for_s: float, show: ProgressCallback) -> ScenarioResult:
    """The same with everything that can go wrong, for so long; then it must come to rest."""
    return simulated_time.run(_run_faulty(day, for_s, show), seed=day.seed)


async def _run_faulty(day: Scenario, for_s: float, show: ProgressCallback) -> ScenarioResult:
    clock, began = simulated_time.LoopClock(asyncio.get_running_loop()), time.monotonic()
    store = MemoryStore(clock)
    mixed = fault_plan.RandomFaultPlanner(day.seed)
    async with cluster_cloud.running(
        store,
        clock,
        FaultSchedule(day.chance),
        mixed,
        settings=FleetSettings(replacements_per_s=max(20.0, day.instances / 100)),
        events=_EVENTS,
        servers=2,
        node_resources=day.node_resources,
    ) as cloud:
        faults_injector = FaultInjector(cloud, day.chance)
        shown = asyncio.ensure_future(_show(cloud, show, every_s=for_s / 20))
        try:
            await _create_all(cloud, day.specs)
            for _ in range(_services(day.instances)):
                with suppress(errors.SkerryError):
                    await faults_injector.users.create_a_service()
                with suppress(errors.SkerryError):
                    await faults_injector.job_users.create_a_job()
            # The more there is, the more happens to it.
            await faults_injector.go_on(for_s, every_s=min(2.0, 200.0 / (day.nodes + 1)))
            await cloud.calm_down()
            mixed.is_calm = True
            calm_at = clock.monotonic()
            deciding = asyncio.ensure_future(faults_injector.users.decide_what_waits())
            pausing = asyncio.ensure_future(faults_injector.job_users.pause_all())
            unrest = await cloud.come_to_rest(_REST_S)
            await cancel_and_wait([deciding, pausing])
        finally:
            await cancel_and_wait([shown])
        rest_s = clock.monotonic() - calm_at
        show(_progress(cloud, clock.monotonic()))
        figures = [
            *((f"times: {deed}", f"{count:,}") for deed, count in sorted(faults_injector.deeds.items())),
            ("placed, with replacements", f"{cloud.witness.binds:,}"),
            ("transactions", f"{await store.revision():,}"),
            ("at rest, after the last fault", f"{rest_s:.0f} s" if not unrest else "never"),
            *_state(cloud, day),
            ("simulated", f"{clock.monotonic():,.0f} s in {time.monotonic() - began:.1f} s"),
        ]
        wrong = [*cloud.witness.violations, *unrest]
    await store.close()
    return ScenarioResult(figures, wrong)


def _services(instances: int) -> int:
    """How many services there are beside so many instances."""
    return -(-instances // 10)


async def _create_all(cloud: SimulatedCloud, specs: Sequence[InstanceSpec]) -> None:
    turns = asyncio.Semaphore(_AT_ONCE)

    async def create(number: int, spec: InstanceSpec) -> None:
        async with turns:
            try:
                await cloud.create(f"i{number:06}", spec)
            except errors.Unavailable:
                pass  # whoever wished that does not know, and does not care

    async with asyncio.TaskGroup() as group:
        for number, spec in enumerate(specs):
            group.create_task(create(number, spec))


async def _rest(cloud: SimulatedCloud) -> list[str]:
    """Wait until nothing moves any more, and look closely only then."""
    at_rest = {InstanceStatus.RUNNING, InstanceStatus.SCHEDULING}
    quiet, before = 0, -1
    while quiet < 2:
        await asyncio.sleep(_SHOW_S)
        revision = await cloud.store.revision()
        moving = sum(count for status, count in cloud.witness.counts.items() if status not in at_rest)
        quiet = quiet + 1 if not moving and revision == before else 0
        before = revision
    return await cloud.come_to_rest(60.0)


async def _show(cloud: SimulatedCloud, show: ProgressCallback, every_s: float = _SHOW_S) -> None:
    began = cloud.clock.monotonic()
    while True:
        show(_progress(cloud, cloud.clock.monotonic() - began))
        await asyncio.sleep(every_s)


def _progress(cloud: SimulatedCloud, at_s: float) -> ScenarioProgress:
    connected = sum(link.connection is not None for link in cloud.links)
    counts = {status.value: count for status, count in sorted(cloud.witness.counts.items()) if count}
    return ScenarioProgress(at_s, connected, counts, cloud.witness.binds)


class _Stopwatch:
    """How long instances take from their creation to RUNNING, as the first server sees it."""

    def __init__(self, cloud: SimulatedCloud) -> None:
        self._clock = cloud.clock
        self._made: dict[InstanceId, float] = {}
        self._placed: list[float] = []
        self._took: list[float] = []
        cloud.servers[0].instance_table.listen(self._moved)

    def placed_per_s(self) -> float:
        if len(self._placed) < 2:
            return 0.0
        return len(self._placed) / max(1e-9, self._placed[-1] - self._placed[0])

    def latencies(self) -> str:
        if len(self._took) < 2:
            return "none ran"
        p50, p99 = statistics.median(self._took), statistics.quantiles(self._took, n=100)[98]
        return f"p50 {p50:.2f} s, p99 {p99:.2f} s"

    def _moved(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        if after is None:
            return
        instance, now = after.value, self._clock.now()
        was = before.value.observed.status if before else None
        if instance.observed.status is InstanceStatus.SCHEDULED and was is InstanceStatus.SCHEDULING:
            self._placed.append(now)
        elif instance.observed.status is InstanceStatus.RUNNING and was is not InstanceStatus.RUNNING:
            self._took.append(now - instance.created_at)


def _state(cloud: SimulatedCloud, day: Scenario) -> list[tuple[str, str]]:
    """What there is in the end."""
    witness = cloud.witness
    counts = ", ".join(f"{count:,} {status}" for status, count in sorted(witness.counts.items()) if count)
    instances = list(witness.instances.values())
    used = {
        link.machine.id: total(one.copy.order.spec.resources for one in link.machine.residents.values())
        for link in cloud.links
    }
    have = [link.machine.hello.resources for link in cloud.links]
    ours = packing.measure(have, list(used.values()))
    figures = [
        ("instances", counts or "none"),
        ("resources allocated", f"{ours.given:.0%}, on {ours.nodes:,} of {day.nodes:,} nodes"),
    ]
    if day.nodes * len(instances) <= _PACKED:
        best = packing.best_fit(have, [one.spec.resources for one in instances])
        figures.append(("the same by best fit", f"{best.given:.0%}, on {best.nodes:,} nodes"))
    return figures
