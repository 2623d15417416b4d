"""Drives one instance towards its order: observe, ask `steps` for the next step, do it, repeat.

`NodeInstances` runs one controller per instance and passes it new orders; controllers wait for each other
only to start. Each decision is on disk before it is carried out, so that the next agent recognises the
container by its name and spec even after a kill.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from msgspec.structs import replace

from skerry.kit import logs, traces
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import race
from skerry.model import errors
from skerry.model.containers import ContainerSpec, ContainerState, ContainerView
from skerry.model.ids import InstanceId
from skerry.model.images import PullProgress
from skerry.model.node_messages import SessionConfig
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import WorkloadKind
from skerry.node.agent.instances import steps
from skerry.node.agent.instances.backends import InstanceBackend, InstanceBackends
from skerry.node.agent.instances.container_specs import SpecTranslation
from skerry.node.agent.instances.records import InstanceRecords
from skerry.node.agent.instances.start_trace import StartTrace
from skerry.node.agent.instances.state import LocalInstance, LocalStatus
from skerry.node.agent.instances.steps import (
    InstanceAction,
    InstanceSituation,
    ReportStatus,
    RunAction,
    WaitUntil,
)
from skerry.node.health.decisions import HealthState
from skerry.node.health.monitor import CheckSubject, HealthMonitor, HealthWatch

log = structlog.get_logger(__name__)

T = TypeVar("T")

_PROGRESS_S = 1.0  # between two reports of a pull's progress


@dataclass(slots=True)
class InstanceDeps:
    """Dependencies of the controllers."""

    records: InstanceRecords
    backends: InstanceBackends
    translation: SpecTranslation
    clock: Clock
    config: SessionConfig
    starts: asyncio.Semaphore
    health: HealthMonitor
    number: Callable[[], int]  # of the next report
    changed: Callable[[LocalInstance], None]  # called with every change that is to be reported
    sleep: Callable[[float], Awaitable[None]]
    chance: Callable[[], float] = random.random
    # Back-off of a stop or removal that failed. Disk errors are retried sooner: space may be freed at any
    # time.
    trouble: Backoff = Backoff(first_s=1.0, cap_s=60.0)  # noqa: RUF009 - frozen
    disk_trouble: Backoff = Backoff(first_s=0.5, cap_s=3.0)  # noqa: RUF009 - frozen
    # Called after every step that a crash may follow: tests end the process there.
    failpoint: Callable[[str], None] = lambda step: None


class InstanceController:
    """Drives one instance; the only writer of its record."""

    def __init__(self, deps: InstanceDeps, copy: LocalInstance, *, is_durable: bool) -> None:
        self.copy = copy
        self._deps = deps
        self.name = deps.translation.name(copy.instance)  # of its container
        self.is_durable = is_durable
        self._woken = asyncio.Event()
        self._failures = 0  # in a row, to stop or remove it
        self._watch: HealthWatch | None = None  # health checks and metric of the current run
        self._watched: object = None  # the run and the checks that `_watch` is for
        self._last_metric: float | None = None
        self._trace: StartTrace | None = None  # of its first start, if that is recorded

    @property
    def instance(self) -> InstanceId:
        return self.copy.instance

    @property
    def runs(self) -> bool:
        """True if its container is running, whether or not that is desired."""
        _, view = self._find_container()
        return view is not None and view.state is ContainerState.RUNNING

    @property
    def metric(self) -> float | None:
        """Its metric for autoscaling, if one is configured and known."""
        return None if self._watch is None else self._watch.metric

    def has_new_metric(self) -> bool:
        """True if its metric has changed since the last call."""
        before, self._last_metric = self._last_metric, self.metric
        return before != self._last_metric

    def set_order(self, copy: LocalInstance) -> None:
        """Set a new order. It takes effect with `confirm`, when it is durable."""
        self._save(copy)
        self.is_durable = False
        self._woken.set()  # interrupts the work for the previous order

    def confirm(self) -> None:
        self.is_durable = True
        self._woken.set()

    def acknowledge(self, number: int) -> None:
        """Drop the reports up to `number`."""
        if self.copy.pending and self.copy.pending[0].number <= number:
            copy = self.copy.acknowledge(number)
            try:
                self._save(copy)
            except OSError as error:  # then the next agent sends it again, which does no harm
                log.warning("instance.unsaved", instance=self.instance, error=str(error))
                self.copy = copy
            self._woken.set()

    def wake(self) -> None:
        """Run the next step now."""
        self._woken.set()

    async def run(self) -> None:
        """Until the instance is removed and that is acknowledged."""
        while True:
            request_id = self.copy.order.request_id
            try:
                with logs.request_context(request_id):
                    if await self._advance():
                        return
            except (errors.SkerryError, OSError) as error:
                # A stop, a removal or the disk failed: retry.
                log.warning(
                    "instance.trouble", instance=self.instance, error=str(error), request_id=request_id
                )
                if self.copy.history.status is InstanceStatus.STOPPING:
                    self._update_reason(f"not stopped yet: {error}")
                backoff = self._deps.disk_trouble if isinstance(error, OSError) else self._deps.trouble
                pause = backoff.delay(self._failures, self._deps.chance)
                self._failures += 1
                await self._pause(self._deps.clock.now() + pause)

    async def _advance(self) -> bool:
        """One step; True if it was the last."""
        if not self.is_durable:
            await self._pause(None)
            return False
        self._update_watch()
        match steps.next_step(self._situation()):
            case ReportStatus(history):
                await self._report(history)
            case RunAction(InstanceAction.FORGET):
                self._deps.records.forget(self.instance)
                self._deps.failpoint("forgotten")
                return True
            case RunAction(action):
                await self._do(action)
                self._failures = 0
            case WaitUntil(until):
                await self._pause(until)
        return False

    def _situation(self) -> InstanceSituation:
        deps = self._deps
        backend, view = self._find_container()
        return InstanceSituation(
            copy=self.copy,
            view=view,
            is_outdated=view is not None and (backend, view.spec) != self._desired_container(),
            now=deps.clock.now(),
            config=deps.config,
            chance=deps.chance(),
            health=None if self._watch is None else self._watch.state,
        )

    def _update_watch(self) -> None:
        """Run health checks of the current run, from its first report to its end or to the order to stop."""
        order, history = self.copy.order, self.copy.history
        _, view = self._find_container()
        spec = order.spec
        desired = None
        if (
            (spec.checks or spec.metric is not None)
            and spec.kind is WorkloadKind.CONTAINER
            and order.desired is DesiredStatus.RUNNING
            and history.status is InstanceStatus.RUNNING
            and not history.failed_check
            and view is not None
            and view.state is ContainerState.RUNNING
            and view.started_at == history.last_run_at
        ):
            desired = (history.last_run_at, spec.checks, spec.metric)
        if desired == self._watched:
            return
        self._watched = desired
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if desired is not None:
            # A run that was ready under the previous agent stays ready until a check fails.
            state = HealthState.begin(
                spec.checks, has_started=history.has_started, has_passed=history.has_passed
            )
            subject = CheckSubject(self.name, state, spec.metric, history.last_run_at or 0.0)
            self._watch = self._deps.health.watch(subject, self.wake)

    def _find_container(self) -> tuple[InstanceBackend, ContainerView] | tuple[None, None]:
        """The container of this instance with its backend; None for a container of that name that somebody
        else created."""
        for backend in self._deps.backends.every():
            try:
                view = backend.get(self.name)
            except errors.NotFound:
                continue
            if view.spec == self.copy.created_spec:
                return backend, view
        return None, None

    def backend(self) -> InstanceBackend:
        """The backend that has the container. Raises NotFound."""
        backend, _ = self._find_container()
        if backend is None:
            raise errors.NotFound(f"there is no container {self.name!r}")
        return backend

    def _desired_container(self) -> tuple[InstanceBackend, ContainerSpec] | None:
        """Backend and spec of the desired container; None if it cannot exist."""
        deps, spec = self._deps, self.copy.order.spec
        try:
            return deps.backends.of(spec.kind), self._container_spec()
        except errors.Invalid:
            return None

    def _container_spec(self) -> ContainerSpec:
        """Raises Invalid if no container can have the spec of the order."""
        order = self.copy.order
        spec = self._deps.translation.spec(self.instance, order.spec)
        # Only where it matters: containers of earlier versions have none, and are to stay as they are.
        return replace(spec, namespace=order.namespace) if spec.secrets else spec

    async def _ensure_secrets(self, spec: ContainerSpec) -> bool:
        """Wait for the values that `spec` needs; False if the order changed meanwhile."""
        if not spec.secrets:
            return True
        secrets = self._deps.backends.secrets
        if secrets is None:
            raise errors.FailedPrecondition("this node takes no secrets")

        async def ensure() -> bool:
            await secrets.ensure(spec.secret_refs, self._update_reason)
            return True

        return await self._unless_order_changes(ensure()) is not None

    async def _report(self, history: LocalStatus) -> None:
        self._save(self.copy.with_status(history, self._deps.number()))
        if history.status in TERMINAL:  # it must not run again after a power cut
            reported = self.copy.pending[-1:]
            await asyncio.to_thread(self._deps.records.sync, [self.instance])
            # Others may have reported meanwhile, and the session sends no numbers below theirs again.
            if reported and reported == self.copy.pending[-1:]:
                self._save(self.copy.with_status(self.copy.history, self._deps.number()))
        self._deps.failpoint(f"reported.{history.status.lower()}")
        log.info(
            "instance.status",
            instance=self.instance,
            generation=self.copy.order.generation,
            status=history.status,
            reason=history.reason,
            exit_code=history.exit_code,
            **({} if history.has_passed else {"check": history.check_message}),
        )
        self._deps.changed(self.copy)
        if self._trace is not None and history.status in (InstanceStatus.RUNNING, *TERMINAL):
            self._trace.end(history, self._deps.clock.now())
            self._trace = None

    def _save(self, copy: LocalInstance) -> None:
        self._deps.records.save(copy)
        self.copy = copy

    async def _do(self, action: InstanceAction) -> None:
        if traces.recorder is None or action not in (InstanceAction.CREATE, InstanceAction.START):
            await self._run(action)
            return
        if self._trace is None:
            self._trace = StartTrace.of(self.copy, self._deps.clock.now())
        began = self._deps.clock.monotonic()
        await self._run(action)
        if self._trace is not None:
            self._trace.step(f"{action} container", self._deps.clock.monotonic() - began)

    async def _run(self, action: InstanceAction) -> None:
        match action:
            case InstanceAction.CREATE:
                await self._attempt(self._create)
            case InstanceAction.START:
                await self._attempt(self._start)
            case InstanceAction.RESTRICT:
                await self._deps.backends.containers.restrict(self.name, self.copy.order.access)
            case InstanceAction.STOP:
                await self.backend().stop(self.name)
            case _:
                await self.backend().remove(self.name, force=True)
        self._deps.failpoint(f"done.{action}")

    async def _attempt(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` of a start; a failure becomes part of the instance's status."""
        order = self.copy.order
        try:
            await work()
        except errors.SkerryError as error:
            situation = self._situation()
            # started by somebody else, or ordered otherwise
            if situation.runs or self.copy.order is not order:
                return
            log.info("instance.not_started", instance=self.instance, error=error.message, detail=error.detail)
            await self._report(steps.not_started(situation, error))

    async def _create(self) -> None:
        order = self.copy.order
        spec = self._container_spec()
        backend = self._deps.backends.of(order.spec.kind)
        images = self._deps.backends.puller(order.namespace)
        if order.spec.kind is WorkloadKind.CELL:
            await self._make(spec, lambda: backend.create(spec))
            return
        if spec.secrets and (secrets := self._deps.backends.secrets) is not None:
            secrets.prefetch(spec.secret_refs)  # `_start` waits for them
        owner = f"instance {self.name}"  # until the container claims the image itself
        pulling = images.ensure(
            spec.image,
            access=order.spec.image_access,
            owner=owner,
            on_progress=self._progress_reporter(),
        )
        try:
            if (image := await self._unless_order_changes(pulling)) is not None:
                # The puller resolved the reference; the name may mean something else to `images`.
                create = self._deps.backends.containers.create
                await self._make(spec, lambda: create(spec, image=image.id, network=order.access))
        finally:
            images.release(owner)

    async def _make(self, spec: ContainerSpec, create: Callable[[], Awaitable[object]]) -> None:
        order = self.copy.order
        # On disk before the container exists, so that it is recognised as ours.
        self._save(replace(self.copy, created_spec=spec))
        await asyncio.to_thread(self._deps.records.sync, [self.instance])
        self._deps.failpoint("made")
        if self.copy.order is order:
            await create()

    def _progress_reporter(self) -> Callable[[PullProgress], None]:
        """A callback that reports the progress of a pull now and then, and why the previous try failed."""
        reported_at = float("-inf")
        before = steps.failed_before(self.copy.history)

        def report(progress: PullProgress) -> None:
            nonlocal reported_at
            now = self._deps.clock.monotonic()
            if now - reported_at >= _PROGRESS_S and self.copy.history.status is InstanceStatus.STARTING:
                reported_at = now
                self._update_reason(f"pulling: {progress.message}{before}")

        return report

    def _update_reason(self, reason: str) -> None:
        """Change the reason of the current status. In memory only: it does not matter to the next agent."""
        history = replace(self.copy.history, reason=reason)
        self.copy = self.copy.with_status(history, self._deps.number())
        self._deps.changed(self.copy)

    async def _start(self) -> None:
        order = self.copy.order
        if not await self._ensure_secrets(self._container_spec()):
            return
        if await self._unless_order_changes(self._deps.starts.acquire()) is None:
            return
        try:
            if self.copy.order is order:
                await self.backend().start(self.name)
        finally:
            self._deps.starts.release()

    async def _unless_order_changes(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None if it was cancelled because the order changed."""
        order = self.copy.order

        async def order_changed() -> None:
            while self.copy.order is order:
                self._woken.clear()
                await self._woken.wait()

        return await race(work, order_changed())

    async def _pause(self, until: float | None) -> None:
        """Wait for `until`, a new order, or the end of the run."""
        self._woken.clear()
        waits: list[Awaitable[object]] = [self._woken.wait()]
        if self.runs:
            waits.append(self._end_of_run())
        if until is not None:
            waits.append(self._deps.sleep(max(0.0, until - self._deps.clock.now())))
        await race(*waits)

    async def _end_of_run(self) -> None:
        with suppress(errors.SkerryError):  # the exit status is unknown; the end is enough
            await self.backend().wait(self.name)
