"""The instances of this node: what the control plane orders, done, and what became of it, told.

The only door to this folder; `skerry.node.agent.agent` brings orders and takes reports. Orders are on disk
before they are acted on, so they hold while the control plane is away and over a restart of the agent;
reports stay on disk until they are acknowledged. Every instance has a driver of its own. Containers that
people made are none of ours: only those of which there is a record here are ever touched.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from msgspec.structs import replace

from skerry.kit.clock import Clock
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import InstanceClaim, SessionConfig
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.settings import FleetSettings
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.node.agent.instances import state
from skerry.node.agent.instances.backends import InstanceBackends
from skerry.node.agent.instances.container_specs import DEFAULT_TRANSLATION, SpecTranslation
from skerry.node.agent.instances.controller import InstanceController, InstanceDeps
from skerry.node.agent.instances.records import InstanceRecords
from skerry.node.agent.instances.state import LocalInstance, PendingReport
from skerry.node.agent.instances.usage import UsageSampler
from skerry.node.health.monitor import CheckLimits, HealthMonitor, Probes
from skerry.node.health.probes import ContainerProbes

log = structlog.get_logger(__name__)

# Starts at once: more of them would not be done sooner, and what runs already would feel them.
STARTS_AT_ONCE = 8
# To orders that are not taken, of which there may be any number; the oldest are for whoever asks again.
_MOST_ANSWERS = 10_000


@dataclass(frozen=True, slots=True)
class InstancePolicy:
    """What the instances of a node, or of a guest on it, are held to."""

    translation: SpecTranslation = DEFAULT_TRANSLATION
    most: int | None = None  # more are not taken
    starts_at_once: int = STARTS_AT_ONCE
    checks: CheckLimits = CheckLimits()  # noqa: RUF009 - frozen


class NodeInstances:
    """Every instance of this node."""

    def __init__(
        self,
        folder: Path,
        backends: InstanceBackends,
        clock: Clock,
        policy: InstancePolicy = InstancePolicy(),  # noqa: B008 - a constant
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        reached: Callable[[str], None] = lambda step: None,
        probes: Probes | None = None,
    ) -> None:
        """`probes` run health checks; without them, those of containers do."""
        self._records = InstanceRecords(folder)
        self._drivers: dict[InstanceId, InstanceController] = {}
        self._reporting: set[InstanceId] = set()  # who has something to report
        self._most = policy.most
        self._turned_away: deque[PendingReport] = deque(maxlen=_MOST_ANSWERS)  # for whom there is no place
        self._usage = UsageSampler(clock)
        self._used_otherwise: set[InstanceId] = set()
        self._news = asyncio.Event()
        self._turn = asyncio.Event()  # the next change of any instance; then there is another one
        self._numbers = itertools.count(1)
        self._reached = reached
        self._health = HealthMonitor(
            probes or ContainerProbes(backends.containers), clock, policy.checks, chance=chance
        )
        self._deps = InstanceDeps(
            records=self._records,
            backends=backends,
            translation=policy.translation,
            clock=clock,
            terms=self._records.terms() or _first_terms(),
            starts=asyncio.Semaphore(policy.starts_at_once),
            health=self._health,
            number=lambda: next(self._numbers),
            changed=self._changed,
            sleep=sleep,
            chance=chance,
            reached=reached,
        )
        self._keeper = TaskSupervisor("instances", clock=clock)

    async def open(self) -> NodeInstances:
        """Take over what is in the folder, and go on with it, whether or not there is a control plane."""
        copies = await asyncio.to_thread(lambda: list(self._records.load()))
        await self._keeper.__aenter__()
        last = max((told.number for copy in copies for told in copy.pending), default=0)
        self._numbers = itertools.count(last + 1)
        for copy in copies:
            self._add(InstanceController(self._deps, copy, is_durable=True))
        return self

    @property
    def terms(self) -> SessionConfig:
        """What this node is held to, by the last control plane that it spoke to."""
        return self._deps.terms

    @property
    def disk_bytes(self) -> int:
        """That instances have written here."""
        return self._usage.disk_bytes

    async def hold_to(self, terms: SessionConfig) -> None:
        """From now on these hold, also when the control plane is away; for the next agent if the disk takes
        them."""
        if terms != self._deps.terms:
            self._deps.terms = terms
            try:
                await asyncio.to_thread(self._records.set_terms, terms)
            except OSError as error:  # the next session tells them again
                log.warning("terms.not_kept", error=str(error))

    async def apply(
        self,
        orders: Sequence[InstanceOrder],
        *,
        is_whole: bool,
        gone: Collection[InstanceId] = (),
        claimed: Collection[InstanceId] = (),
    ) -> None:
        """Take orders; they are on disk, and are being done, when this returns. One call at a time.

        With `is_whole` what is not ordered is no longer this node's and goes, unless it is `claimed`; so do
        those that are `gone`. Raises Unavailable if they cannot be kept; then they can be given again.
        """
        ordered = {order.instance for order in orders} | set(claimed)
        lost = [each for each in self._drivers.values() if is_whole and each.instance not in ordered]
        lost += [self._drivers[id] for id in gone if id in self._drivers]
        try:
            taken = [driver for order in orders if (driver := self._take(order)) is not None]
            taken += [driver for driver in lost if self._disown(driver)]
            if taken:
                await asyncio.to_thread(self._records.sync, [driver.instance for driver in taken])
        except OSError as error:
            raise errors.Unavailable(
                f"the node cannot keep its orders: {error.strerror}", detail=repr(error)
            ) from error
        self._reached("applied")
        for driver in taken:
            driver.confirm()

    def _take(self, order: InstanceOrder) -> InstanceController | None:
        """Who is to carry out `order`, if that is new."""
        driver = self._drivers.get(order.instance)
        before = driver.copy if driver is not None else None
        after = state.apply(before, order)
        if after is None:
            log.warning(
                "order.refused",
                instance=order.instance,
                generation=order.generation,
                request_id=order.request_id,
            )
            return None
        if driver is None:
            if self._most is not None and len(self._drivers) >= self._most:
                self._turn_away(order)
                return None
            self._records.save(after)
            driver = InstanceController(self._deps, after, is_durable=False)
            self._add(driver)
        elif after != before:
            driver.take(after)
        elif driver.is_durable:
            return None
        return driver

    def _turn_away(self, order: InstanceOrder) -> None:
        """Say that there is no place for it. Nothing of it is kept: there may be any number of these."""
        now = self._deps.clock.now()
        number, reason = next(self._numbers), f"not started: {self._most} instances are the most there may be"
        self._turned_away.append(PendingReport(number, state.turned_away(order, now, reason)))
        self._news.set()

    def _disown(self, driver: InstanceController) -> bool:
        if driver.copy.is_stale:
            return not driver.is_durable
        order = driver.copy.order
        log.info(
            "instance.disowned",
            instance=order.instance,
            generation=order.generation,
            request_id=order.request_id,
        )
        driver.take(state.disown(driver.copy))
        self._reporting.discard(driver.instance)
        return True

    def reports(self, after: int, most: int) -> list[PendingReport]:
        """What is to be told and has a number above `after`, in that order: the first `most` of it."""
        pending = (told for id in self._reporting for told in self._drivers[id].copy.pending)
        news = (told for told in itertools.chain(pending, self._turned_away) if told.number > after)
        return [self._measured(told) for told in sorted(news, key=lambda told: told.number)[:most]]

    def _measured(self, pending: PendingReport) -> PendingReport:
        """`pending` with what the instance uses now: a change of its readiness must not hide that."""
        report = pending.report
        driver = self._drivers.get(report.instance)
        if driver is None or report.status is not InstanceStatus.RUNNING:
            return pending
        usage = self._usage.of(report.instance)
        return replace(pending, report=replace(report, usage=usage, metric=driver.metric))

    def _report(self, driver: InstanceController) -> InstanceReport:
        return driver.copy.report(self._usage.of(driver.instance), driver.metric)

    def acknowledge(self, number: int) -> None:
        """The control plane has what was told up to `number`."""
        while self._turned_away and self._turned_away[0].number <= number:
            self._turned_away.popleft()
        for id in list(self._reporting):
            driver = self._drivers[id]
            driver.acknowledge(number)
            if not driver.copy.pending:
                self._reporting.discard(id)

    def inventory(self) -> list[InstanceReport]:
        """What every instance is now, for a control plane that may have missed something."""
        return [
            self._report(driver)
            for driver in self._drivers.values()
            if not driver.copy.is_stale and driver.copy.history.status is not InstanceStatus.SCHEDULED
        ]

    def claims(self, ordered: Collection[InstanceId] = ()) -> list[InstanceClaim]:
        """What is here and is to be, but is not `ordered`, for a control plane that may have forgotten it."""
        copies = (driver.copy for driver in self._drivers.values() if driver.instance not in ordered)
        return [
            InstanceClaim(copy.order.receipt, copy.report())
            for copy in copies
            if copy.order.receipt and not copy.is_stale and copy.order.desired is not DesiredStatus.DESTROYED
        ]

    def take_usage(self) -> list[InstanceReport]:
        """What is to be told because an instance uses more or less than was told of it before."""
        used, self._used_otherwise = self._used_otherwise, set()
        drivers = [self._drivers[id] for id in used if id in self._drivers]
        return [
            self._report(driver)
            for driver in drivers
            if not driver.copy.is_stale and driver.copy.history.status is InstanceStatus.RUNNING
        ]

    async def news(self) -> None:
        """Return when there are reports that there were not when this returned last. For one who waits."""
        await self._news.wait()
        self._news.clear()

    def container(self, instance: InstanceId) -> str:
        """The name of its container, which need not be there yet. Raises NotFound."""
        return self._deps.translation.name(self.copy(instance).instance)

    def copy(self, instance: InstanceId) -> LocalInstance:
        """All that is known of it. Raises NotFound."""
        driver = self._drivers.get(instance)
        if driver is None or driver.copy.is_stale:
            raise errors.NotFound(f"there is no instance {instance!r} on this node")
        return driver.copy

    async def change(self) -> None:
        """Return at the next change of any instance."""
        await self._turn.wait()

    async def emptied(self) -> None:
        """Return when there are no instances here, and no records of any."""
        while self._drivers:
            await self.change()

    async def run(self) -> None:
        """Measure what instances use. For ever."""
        while True:
            await self._deps.sleep(self._deps.terms.report_s)
            await self.look()

    async def look(self) -> None:
        """Measure once; what somebody started by hand and should not run is looked at again."""
        running = {}
        for driver in self._drivers.values():
            if driver.runs:
                running[driver.instance] = (driver.backend(), driver.name)
                if driver.copy.history.status is not InstanceStatus.RUNNING:
                    driver.wake()
            if driver.has_new_metric():
                self._used_otherwise.add(driver.instance)
        self._used_otherwise |= await self._usage.look(running)

    async def close(self) -> None:
        """The agent ends; the instances go on."""
        await self._keeper.stop()
        await self._health.close()

    def _add(self, driver: InstanceController) -> None:
        self._drivers[driver.instance] = driver
        if driver.copy.pending:
            self._reporting.add(driver.instance)
            self._news.set()
        self._keeper.once(driver.instance, self._drive(driver))

    async def _drive(self, driver: InstanceController) -> None:
        failures = 0
        while True:
            try:
                await driver.run()
            except Exception as error:  # a fault of ours, which must not leave an instance to itself
                log.error("instance.undriven", instance=driver.instance, error=repr(error), exc_info=error)
                await self._deps.sleep(self._deps.trouble.delay(failures, self._deps.chance))
                failures += 1
            else:
                break
        self._reporting.discard(driver.instance)
        del self._drivers[driver.instance]
        self._announce()

    def _changed(self, copy: LocalInstance) -> None:
        if copy.pending:
            self._reporting.add(copy.instance)
            self._news.set()
        self._announce()

    def _announce(self) -> None:
        self._turn.set()
        self._turn = asyncio.Event()


def _first_terms() -> SessionConfig:
    """Before any control plane was heard."""
    usual = FleetSettings()
    return SessionConfig(
        node=NodeId(""),
        subnet="",
        report_s=usual.report_s,
        restart_base_s=usual.restart_base_s,
        restart_cap_s=usual.restart_cap_s,
        restart_reset_s=usual.restart_reset_s,
    )
