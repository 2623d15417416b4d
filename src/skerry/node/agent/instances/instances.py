"""The instances of this node: carries out orders of the control plane and reports their status.

The public module of this package; `skerry.node.agent.agent` passes orders in and reports out. Orders are on
disk before they are carried out, so they survive a restart of the agent and hold while the control plane is
unreachable; reports stay on disk until they are acknowledged. Each instance has a controller of its own. Only
containers with a record here are touched, never those that people created.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from skerry.kit.clock import Clock
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors
from skerry.model.containers import INSTANCE_PREFIX
from skerry.model.ids import InstanceId, Namespace, NodeId
from skerry.model.node_messages import InstanceClaim, SessionConfig
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.secrets import SecretRef
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

# Concurrent starts: more would not finish sooner, and would slow down what runs already.
STARTS_AT_ONCE = 8
# Reports of rejected orders, of which there may be any number; older ones are dropped.
_MAX_REJECTED = 10_000


class InstancePolicy(msgspec.Struct, frozen=True):
    """Limits of the instances of a node, or of a guest on it."""

    translation: SpecTranslation = DEFAULT_TRANSLATION
    max_instances: int | None = None  # more are rejected
    starts_at_once: int = STARTS_AT_ONCE
    checks: CheckLimits = CheckLimits()


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
        failpoint: Callable[[str], None] = lambda step: None,
        probes: Probes | None = None,
    ) -> None:
        """`probes` run health checks; without them, those of containers do."""
        self._records = InstanceRecords(folder)
        self._controllers: dict[InstanceId, InstanceController] = {}
        self._reporting: set[InstanceId] = set()  # instances with reports to send
        self._max_instances = policy.max_instances
        self._rejected: deque[PendingReport] = deque(maxlen=_MAX_REJECTED)  # of orders over `max_instances`
        self._usage = UsageSampler(clock)
        self._usage_changed: set[InstanceId] = set()
        self._has_reports = asyncio.Event()
        self._next_change = asyncio.Event()  # set at the next change of any instance, then replaced
        self._numbers = itertools.count(1)
        self._failpoint = failpoint
        self._health = HealthMonitor(
            probes or ContainerProbes(backends.containers), clock, policy.checks, chance=chance
        )
        self._deps = InstanceDeps(
            records=self._records,
            backends=backends,
            translation=policy.translation,
            clock=clock,
            config=self._records.config() or _default_config(),
            starts=asyncio.Semaphore(policy.starts_at_once),
            health=self._health,
            number=lambda: next(self._numbers),
            changed=self._changed,
            sleep=sleep,
            chance=chance,
            failpoint=failpoint,
        )
        self._tasks = TaskSupervisor("instances", clock=clock)
        self._secrets = backends.secrets
        if self._secrets is not None:
            self._secrets.add_user(self._secret_refs)

    async def open(self) -> NodeInstances:
        """Load the records and go on with them, with or without a control plane."""
        copies = await asyncio.to_thread(lambda: list(self._records.load()))
        await self._tasks.__aenter__()
        last = max((report.number for copy in copies for report in copy.pending), default=0)
        self._numbers = itertools.count(last + 1)
        for copy in copies:
            self._add(InstanceController(self._deps, copy, is_durable=True))
        return self

    @property
    def config(self) -> SessionConfig:
        """The session config that the control plane sent last."""
        return self._deps.config

    def order_of(self, container: str) -> InstanceOrder | None:
        """The order of the instance that runs as this container; None if none does."""
        controller = self._controllers.get(InstanceId(container.removeprefix(INSTANCE_PREFIX)))
        if controller is None or controller.name != container:  # ids that are hashed in names
            all_of_them = self._controllers.values()
            controller = next((each for each in all_of_them if each.name == container), None)
        return None if controller is None else controller.copy.order

    def namespace_of(self, container: str) -> Namespace | None:
        """The namespace of the instance that runs as this container; None if none does."""
        order = self.order_of(container)
        return None if order is None else order.namespace

    @property
    def disk_bytes(self) -> int:
        """Disk space that instances use."""
        return self._usage.disk_bytes

    async def set_config(self, config: SessionConfig) -> None:
        """Use this config from now on, also while the control plane is unreachable; and in the next agent, if
        it can be stored."""
        if config != self._deps.config:
            self._deps.config = config
            try:
                await asyncio.to_thread(self._records.set_config, config)
            except OSError as error:  # the next session sends it again
                log.warning("terms.not_kept", error=str(error))

    async def apply(
        self,
        orders: Sequence[InstanceOrder],
        *,
        is_full: bool,
        removed: Collection[InstanceId] = (),
        claimed: Collection[InstanceId] = (),
    ) -> None:
        """Take orders; on return they are durable and being carried out. One call at a time.

        With `is_full`, instances that are not ordered are no longer this node's and are removed, unless they
        are `claimed`; so are the `removed` ones. Raises Unavailable if the orders cannot be stored; then the
        call can be repeated.
        """
        ordered = {order.instance for order in orders} | set(claimed)
        disowned = [
            controller
            for controller in self._controllers.values()
            if is_full and controller.instance not in ordered
        ]
        disowned += [self._controllers[id] for id in removed if id in self._controllers]
        try:
            changed = [controller for order in orders if (controller := self._apply(order)) is not None]
            changed += [controller for controller in disowned if self._disown(controller)]
            if changed:
                await asyncio.to_thread(self._records.sync, [controller.instance for controller in changed])
        except OSError as error:
            raise errors.Unavailable(
                f"the node cannot store its orders: {error.strerror}", detail=repr(error)
            ) from error
        self._failpoint("applied")
        for controller in changed:
            controller.confirm()
        if changed:
            self._prune_secrets()

    def _secret_refs(self) -> Iterator[SecretRef]:
        """Values that its instances use, running or not."""
        for controller in self._controllers.values():
            order = controller.copy.order
            if order.desired is not DesiredStatus.DESTROYED:
                yield from (use.ref(order.namespace) for use in order.spec.secrets)
            # Of the container that is there, which may be of an earlier order.
            if (created := controller.copy.created_spec) is not None:
                yield from created.secret_refs

    def _prune_secrets(self) -> None:
        if self._secrets is not None:
            self._secrets.prune()

    def _apply(self, order: InstanceOrder) -> InstanceController | None:
        """The controller that is to carry out `order`; None if the order is not new."""
        controller = self._controllers.get(order.instance)
        before = controller.copy if controller is not None else None
        after = state.apply(before, order)
        if after is None:
            log.warning(
                "order.refused",
                instance=order.instance,
                generation=order.generation,
                request_id=order.request_id,
            )
            return None
        if controller is None:
            if self._max_instances is not None and len(self._controllers) >= self._max_instances:
                self._reject(order)
                return None
            self._records.save(after)
            controller = InstanceController(self._deps, after, is_durable=False)
            self._add(controller)
        elif after != before:
            controller.set_order(after)
        elif controller.is_durable:
            return None
        return controller

    def _reject(self, order: InstanceOrder) -> None:
        """Report that the node is full. Nothing is stored: there may be any number of these."""
        now = self._deps.clock.now()
        number, reason = (
            next(self._numbers),
            f"not started: at most {self._max_instances} instances are allowed",
        )
        self._rejected.append(PendingReport(number, state.rejection_report(order, now, reason)))
        self._has_reports.set()

    def _disown(self, controller: InstanceController) -> bool:
        if controller.copy.is_stale:
            return not controller.is_durable
        order = controller.copy.order
        log.info(
            "instance.disowned",
            instance=order.instance,
            generation=order.generation,
            request_id=order.request_id,
        )
        controller.set_order(state.disown(controller.copy))
        self._reporting.discard(controller.instance)
        return True

    def reports(self, after: int, limit: int) -> list[PendingReport]:
        """The first `limit` pending reports with a number above `after`, in order."""
        pending = (report for id in self._reporting for report in self._controllers[id].copy.pending)
        news = (report for report in itertools.chain(pending, self._rejected) if report.number > after)
        return [self._measured(report) for report in sorted(news, key=lambda report: report.number)[:limit]]

    def _measured(self, pending: PendingReport) -> PendingReport:
        """`pending` with the current usage: a change of readiness must not hide that."""
        report = pending.report
        controller = self._controllers.get(report.instance)
        if controller is None or report.status is not InstanceStatus.RUNNING:
            return pending
        usage = self._usage.of(report.instance)
        return replace(pending, report=replace(report, usage=usage, metric=controller.metric))

    def _report(self, controller: InstanceController) -> InstanceReport:
        return controller.copy.report(self._usage.of(controller.instance), controller.metric)

    def acknowledge(self, number: int) -> None:
        """The control plane has received the reports up to `number`."""
        while self._rejected and self._rejected[0].number <= number:
            self._rejected.popleft()
        for id in list(self._reporting):
            controller = self._controllers[id]
            controller.acknowledge(number)
            if not controller.copy.pending:
                self._reporting.discard(id)

    def inventory(self) -> list[InstanceReport]:
        """The current status of every instance, for a control plane that may have missed reports."""
        return [
            self._report(controller)
            for controller in self._controllers.values()
            if not controller.copy.is_stale and controller.copy.history.status is not InstanceStatus.SCHEDULED
        ]

    def claims(self, ordered: Collection[InstanceId] = ()) -> list[InstanceClaim]:
        """Instances that should be here but are not `ordered`, for a control plane that may have lost
        them."""
        copies = (
            controller.copy for controller in self._controllers.values() if controller.instance not in ordered
        )
        return [
            InstanceClaim(copy.order.receipt, copy.report())
            for copy in copies
            if copy.order.receipt and not copy.is_stale and copy.order.desired is not DesiredStatus.DESTROYED
        ]

    def take_usage(self) -> list[InstanceReport]:
        """Reports of instances whose usage has changed since the last one."""
        used, self._usage_changed = self._usage_changed, set()
        drivers = [self._controllers[id] for id in used if id in self._controllers]
        return [
            self._report(controller)
            for controller in drivers
            if not controller.copy.is_stale and controller.copy.history.status is InstanceStatus.RUNNING
        ]

    async def wait_for_reports(self) -> None:
        """Return when there are reports that there were not at the last return. For one waiter."""
        await self._has_reports.wait()
        self._has_reports.clear()

    def container(self, instance: InstanceId) -> str:
        """The name of its container, which need not exist yet. Raises NotFound."""
        return self._deps.translation.name(self.copy(instance).instance)

    def containers(self) -> dict[str, InstanceId]:
        """All instances, by the names of their containers."""
        return {self._deps.translation.name(id): id for id in self._controllers}

    def copy(self, instance: InstanceId) -> LocalInstance:
        """Its local record. Raises NotFound."""
        controller = self._controllers.get(instance)
        if controller is None or controller.copy.is_stale:
            raise errors.NotFound(f"there is no instance {instance!r} on this node")
        return controller.copy

    async def wait_for_change(self) -> None:
        """Return at the next change of any instance."""
        await self._next_change.wait()

    async def emptied(self) -> None:
        """Return when there are neither instances nor records of any."""
        while self._controllers:
            await self.wait_for_change()

    async def run(self) -> None:
        """Measure the usage of instances. Runs for ever."""
        while True:
            await self._deps.sleep(self._deps.config.report_s)
            await self.sample_usage()

    async def sample_usage(self) -> None:
        """Measure once; controllers of containers that run against their order are woken."""
        running = {}
        for controller in self._controllers.values():
            if controller.runs:
                running[controller.instance] = (controller.backend(), controller.name)
                if controller.copy.history.status is not InstanceStatus.RUNNING:
                    controller.wake()
            if controller.has_new_metric():
                self._usage_changed.add(controller.instance)
        self._usage_changed |= await self._usage.sample(running)

    async def close(self) -> None:
        """Stop the controllers; the instances keep running."""
        await self._tasks.stop()
        await self._health.close()

    def _add(self, controller: InstanceController) -> None:
        self._controllers[controller.instance] = controller
        if controller.copy.pending:
            self._reporting.add(controller.instance)
            self._has_reports.set()
        self._tasks.once(controller.instance, self._run_controller(controller))

    async def _run_controller(self, controller: InstanceController) -> None:
        failures = 0
        while True:
            try:
                await controller.run()
            except Exception as error:  # a bug, which must not leave an instance without a controller
                log.error(
                    "instance.undriven", instance=controller.instance, error=repr(error), exc_info=error
                )
                await self._deps.sleep(self._deps.trouble.delay(failures, self._deps.chance))
                failures += 1
            else:
                break
        self._reporting.discard(controller.instance)
        del self._controllers[controller.instance]
        self._prune_secrets()
        self._notify_change()

    def _changed(self, copy: LocalInstance) -> None:
        if copy.pending:
            self._reporting.add(copy.instance)
            self._has_reports.set()
        self._notify_change()

    def _notify_change(self) -> None:
        self._next_change.set()
        self._next_change = asyncio.Event()


def _default_config() -> SessionConfig:
    """Until the first session."""
    usual = FleetSettings()
    return SessionConfig(
        node=NodeId(""),
        subnet="",
        report_s=usual.report_s,
        restart_base_s=usual.restart_base_s,
        restart_cap_s=usual.restart_cap_s,
        restart_reset_s=usual.restart_reset_s,
    )
