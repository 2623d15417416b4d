"""Scenarios of `skerry sim`: a number of nodes and instances, with or without faults.

Without faults a scenario runs in real time, on a SQLite store on this machine's disk, so that its rates are
those of a server here. With faults it takes minutes until the cloud has converged, so it runs in simulated
time, on a store in memory, and is the same again for the same seed. Both check the invariants.
`skerry.cli.commands.sim` prints the results.
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
_IN_FLIGHT = 128  # requests at once
_EVENTS = EventSettings(keep=10_000)
# Up to so many pairs of node and instance the result is compared with best fit, which is slow.
_PACKED = 2_000_000
_CONVERGE_S = 1800.0


class ScenarioProgress(msgspec.Struct, frozen=True):
    """A cloud at one moment."""

    at_s: float  # since the start, in the time of the scenario
    nodes: int  # connected
    counts: dict[str, int]  # instances by status
    placed: int  # so far


class ScenarioResult(msgspec.Struct, frozen=True):
    """What was measured, and which invariants were violated."""

    figures: list[tuple[str, str]]
    wrong: list[str]


ProgressCallback = Callable[[ScenarioProgress], None]


@dataclass
class Scenario:
    """What to simulate."""

    nodes: int
    instances: int
    seed: int
    node_resources: list[Resources] = field(init=False)
    specs: list[InstanceSpec] = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - a simulation
        self.node_resources = workload_generator.draw_node_resources(self.nodes, self.chance)
        self.specs = workload_generator.draw_specs(self.instances, self.chance)


async def run_healthy(scenario: Scenario, folder: Path, show: ProgressCallback) -> ScenarioResult:
    """Nodes join, and instances are created and run. In real time, on a store in `folder`."""
    clock, began = SystemClock(), time.process_time()
    store = await SqliteStore.open(folder / "store.db", clock)
    faults = FaultSchedule(scenario.chance)
    try:
        joining = clock.monotonic()
        async with cluster_cloud.running(
            store,
            clock,
            faults,
            fault_plan.healthy_runs(0.2),
            events=_EVENTS,
            node_resources=scenario.node_resources,
        ) as cloud:
            joined_s = clock.monotonic() - joining
            watch = _Stopwatch(cloud)
            shown = asyncio.ensure_future(_show(cloud, show))
            try:
                creating = clock.monotonic()
                await _create_all(cloud, scenario.specs)
                created_s = clock.monotonic() - creating
                differences = await _converge(cloud)
                converged_s = clock.monotonic() - creating
            finally:
                await cancel_and_wait([shown])
            show(_progress(cloud, converged_s))
            figures = [
                ("nodes that joined", f"{scenario.nodes:,} in {joined_s:.1f} s"),
                (
                    "instances created",
                    f"{scenario.instances:,}, {scenario.instances / created_s:,.0f} a second",
                ),
                ("placed", f"{cloud.checker.binds:,}, {watch.placed_per_s():,.0f} a second"),
                ("creation to RUNNING", watch.latencies()),
                *_state(cloud, scenario),
                ("processor time", f"{time.process_time() - began:.1f} s"),
            ]
            return ScenarioResult(figures, [*cloud.checker.violations, *differences])
    finally:
        await store.close()


def run_faulty(scenario: Scenario, for_s: float, show: ProgressCallback) -> ScenarioResult:
    """The same with faults for `for_s`; then the cloud must converge."""
    return simulated_time.run(_run_faulty(scenario, for_s, show), seed=scenario.seed)


async def _run_faulty(scenario: Scenario, for_s: float, show: ProgressCallback) -> ScenarioResult:
    clock, began = simulated_time.LoopClock(asyncio.get_running_loop()), time.monotonic()
    store = MemoryStore(clock)
    mixed = fault_plan.RandomFaultPlanner(scenario.seed)
    async with cluster_cloud.running(
        store,
        clock,
        FaultSchedule(scenario.chance),
        mixed,
        settings=FleetSettings(replacements_per_s=max(20.0, scenario.instances / 100)),
        events=_EVENTS,
        servers=2,
        node_resources=scenario.node_resources,
    ) as cloud:
        injector = FaultInjector(cloud, scenario.chance)
        shown = asyncio.ensure_future(_show(cloud, show, every_s=for_s / 20))
        try:
            await _create_all(cloud, scenario.specs)
            for _ in range(_services(scenario.instances)):
                with suppress(errors.SkerryError):
                    await injector.service_users.create_a_service()
                with suppress(errors.SkerryError):
                    await injector.job_users.create_a_job()
            # Larger clouds have more faults.
            await injector.run_faults(for_s, every_s=min(2.0, 200.0 / (scenario.nodes + 1)))
            await cloud.end_faults()
            mixed.is_calm = True
            faults_ended_at = clock.monotonic()
            deciding = asyncio.ensure_future(injector.service_users.resolve_all())
            pausing = asyncio.ensure_future(injector.job_users.pause_all())
            differences = await cloud.converge(_CONVERGE_S)
            await cancel_and_wait([deciding, pausing])
        finally:
            await cancel_and_wait([shown])
        converged_s = clock.monotonic() - faults_ended_at
        show(_progress(cloud, clock.monotonic()))
        figures = [
            *((f"times: {action}", f"{count:,}") for action, count in sorted(injector.actions.items())),
            ("placed, with replacements", f"{cloud.checker.binds:,}"),
            ("transactions", f"{await store.revision():,}"),
            ("converged after the last fault", f"{converged_s:.0f} s" if not differences else "never"),
            *_state(cloud, scenario),
            ("simulated", f"{clock.monotonic():,.0f} s in {time.monotonic() - began:.1f} s"),
        ]
        wrong = [*cloud.checker.violations, *differences]
    await store.close()
    return ScenarioResult(figures, wrong)


def _services(instances: int) -> int:
    """How many services and jobs there are beside so many instances."""
    return -(-instances // 10)


async def _create_all(cloud: SimulatedCloud, specs: Sequence[InstanceSpec]) -> None:
    slots = asyncio.Semaphore(_IN_FLIGHT)

    async def create(number: int, spec: InstanceSpec) -> None:
        async with slots:
            try:
                await cloud.create(f"i{number:06}", spec)
            except errors.Unavailable:
                pass  # it is not known whether it was created, which does not matter here

    async with asyncio.TaskGroup() as group:
        for number, spec in enumerate(specs):
            group.create_task(create(number, spec))


async def _converge(cloud: SimulatedCloud) -> list[str]:
    """Wait until nothing changes any more, and check for differences only then."""
    stable = {InstanceStatus.RUNNING, InstanceStatus.SCHEDULING}
    quiet, before = 0, -1
    while quiet < 2:
        await asyncio.sleep(_SHOW_S)
        revision = await cloud.store.revision()
        moving = sum(count for status, count in cloud.checker.counts.items() if status not in stable)
        quiet = quiet + 1 if not moving and revision == before else 0
        before = revision
    return await cloud.converge(60.0)


async def _show(cloud: SimulatedCloud, show: ProgressCallback, every_s: float = _SHOW_S) -> None:
    began = cloud.clock.monotonic()
    while True:
        show(_progress(cloud, cloud.clock.monotonic() - began))
        await asyncio.sleep(every_s)


def _progress(cloud: SimulatedCloud, at_s: float) -> ScenarioProgress:
    connected = sum(link.connection is not None for link in cloud.links)
    counts = {status.value: count for status, count in sorted(cloud.checker.counts.items()) if count}
    return ScenarioProgress(at_s, connected, counts, cloud.checker.binds)


class _Stopwatch:
    """Times from creation to RUNNING, as the first server records them."""

    def __init__(self, cloud: SimulatedCloud) -> None:
        self._clock = cloud.clock
        self._placed: list[float] = []
        self._start_times_s: list[float] = []
        cloud.servers[0].instance_table.listen(self._instance_changed)

    def placed_per_s(self) -> float:
        if len(self._placed) < 2:
            return 0.0
        return len(self._placed) / max(1e-9, self._placed[-1] - self._placed[0])

    def latencies(self) -> str:
        if len(self._start_times_s) < 2:
            return "none ran"
        p50, p99 = (
            statistics.median(self._start_times_s),
            statistics.quantiles(self._start_times_s, n=100)[98],
        )
        return f"p50 {p50:.2f} s, p99 {p99:.2f} s"

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        if after is None:
            return
        instance, now = after.value, self._clock.now()
        was = before.value.observed.status if before else None
        if instance.observed.status is InstanceStatus.SCHEDULED and was is InstanceStatus.SCHEDULING:
            self._placed.append(now)
        elif instance.observed.status is InstanceStatus.RUNNING and was is not InstanceStatus.RUNNING:
            self._start_times_s.append(now - instance.created_at)


def _state(cloud: SimulatedCloud, scenario: Scenario) -> list[tuple[str, str]]:
    """The final state."""
    checker = cloud.checker
    counts = ", ".join(f"{count:,} {status}" for status, count in sorted(checker.counts.items()) if count)
    instances = list(checker.instances.values())
    used = {
        link.machine.id: total(one.copy.order.spec.resources for one in link.machine.residents.values())
        for link in cloud.links
    }
    have = [link.machine.hello.resources for link in cloud.links]
    ours = packing.measure(have, list(used.values()))
    figures = [
        ("instances", counts or "none"),
        ("resources allocated", f"{ours.allocated:.0%}, on {ours.nodes:,} of {scenario.nodes:,} nodes"),
    ]
    if scenario.nodes * len(instances) <= _PACKED:
        best = packing.best_fit(have, [one.spec.resources for one in instances])
        figures.append(("the same by best fit", f"{best.allocated:.0%}, on {best.nodes:,} nodes"))
    return figures
