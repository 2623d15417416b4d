"""One instance, driven toward its order: looks, asks `steps` what to do, does it, and begins anew.

`NodeInstances` runs one of these for each instance and hands it new orders; none waits for another, but for
its turn to start. Whatever is decided on is on disk before it is done: what is ours by the name of its
container is known even to an agent that comes after one that was killed here.
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

from skerry.kit import logs
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

_PROGRESS_S = 1.0  # between two words on how far a pull has come


@dataclass(slots=True)
class InstanceDeps:
    """What driving instances takes."""

    records: InstanceRecords
    backends: InstanceBackends
    translation: SpecTranslation
    clock: Clock
    config: SessionConfig
    starts: asyncio.Semaphore
    health: HealthMonitor
    number: Callable[[], int]  # of the next report
    changed: Callable[[LocalInstance], None]  # told of every copy that says something new
    sleep: Callable[[float], Awaitable[None]]
    chance: Callable[[], float] = random.random
    # What cannot be stopped or removed is tried again after this; what cannot be written down sooner, since
    # somebody may make room at any moment.
    trouble: Backoff = Backoff(first_s=1.0, cap_s=60.0)  # noqa: RUF009 - frozen
    disk_trouble: Backoff = Backoff(first_s=0.5, cap_s=3.0)  # noqa: RUF009 - frozen
    # Told after every step that a crash may follow: tests end the process there.
    reached: Callable[[str], None] = lambda step: None


class InstanceController:
    """Drives one instance, whose record nobody else writes from now on."""

    def __init__(self, deps: InstanceDeps, copy: LocalInstance, *, is_durable: bool) -> None:
        self.copy = copy
        self._deps = deps
        self.name = deps.translation.name(copy.instance)  # of its container
        self.is_durable = is_durable
        self._woken = asyncio.Event()
        self._failures = 0  # in a row, to stop or remove it
        self._watch: HealthWatch | None = None  # of its checks and its metric, while it runs
        self._watched: object = None  # which run, and for what
        self._last_metric: float | None = None

    @property
    def instance(self) -> InstanceId:
        return self.copy.instance

    @property
    def runs(self) -> bool:
        """True if its container does, whether or not it is meant to."""
        _, view = self._find_container()
        return view is not None and view.state is ContainerState.RUNNING

    @property
    def metric(self) -> float | None:
        """What it shows of itself for autoscaling, if that is asked for and known."""
        return None if self._watch is None else self._watch.metric

    def has_new_metric(self) -> bool:
        """True if its metric is another than when this was called last."""
        before, self._last_metric = self._last_metric, self.metric
        return before != self._last_metric

    def set_order(self, copy: LocalInstance) -> None:
        """Another order. It is acted on when `confirm` is called, since it has to outlive us first."""
        self._save(copy)
        self.is_durable = False
        self._woken.set()  # what goes on for the order before it may be given up

    def confirm(self) -> None:
        self.is_durable = True
        self._woken.set()

    def acknowledge(self, number: int) -> None:
        """The reports up to `number` are known."""
        if self.copy.pending and self.copy.pending[0].number <= number:
            copy = self.copy.acknowledge(number)
            try:
                self._save(copy)
            except OSError as error:  # then it is told once more by the next agent, which does no harm
                log.warning("instance.unsaved", instance=self.instance, error=str(error))
                self.copy = copy
            self._woken.set()

    def wake(self) -> None:
        """Look again."""
        self._woken.set()

    async def run(self) -> None:
        """Until it is gone, and that is known."""
        while True:
            request_id = self.copy.order.request_id
            try:
                with logs.request_context(request_id):
                    if await self._advance():
                        return
            except (errors.SkerryError, OSError) as error:
                # Of a stop, a removal or the disk: nothing is left but to try again.
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
                self._deps.reached("forgotten")
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
        """Check the run that goes on, from its first report to its end or to the order to end it."""
        order, history = self.copy.order, self.copy.history
        _, view = self._find_container()
        spec = order.spec
        wanted = None
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
            wanted = (history.last_run_at, spec.checks, spec.metric)
        if wanted == self._watched:
            return
        self._watched = wanted
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if wanted is not None:
            # A run that was ready when the agent before this one ended stays so until a check says otherwise.
            state = HealthState.begin(
                spec.checks, has_started=history.has_started, has_passed=history.has_passed
            )
            subject = CheckSubject(self.name, state, spec.metric, history.last_run_at or 0.0)
            self._watch = self._deps.health.watch(subject, self.wake)

    def _find_container(self) -> tuple[InstanceBackend, ContainerView] | tuple[None, None]:
        """The container and where it is, if there is one and it is ours: people may have made one of that
        name."""
        for backend in self._deps.backends.every():
            try:
                view = backend.get(self.name)
            except errors.NotFound:
                continue
            if view.spec == self.copy.created_spec:
                return backend, view
        return None, None

    def backend(self) -> InstanceBackend:
        """Where the container is. Raises NotFound."""
        backend, _ = self._find_container()
        if backend is None:
            raise errors.NotFound(f"there is no container {self.name!r}")
        return backend

    def _desired_container(self) -> tuple[InstanceBackend, ContainerSpec] | None:
        """What the container should be like, and where; None if there can be none."""
        deps, spec = self._deps, self.copy.order.spec
        try:
            return deps.backends.of(spec.kind), deps.translation.spec(self.instance, spec)
        except errors.Invalid:
            return None

    async def _report(self, history: LocalStatus) -> None:
        self._save(self.copy.with_status(history, self._deps.number()))
        if history.status in TERMINAL:  # it must not run again because the power failed
            reported = self.copy.pending[-1:]
            await asyncio.to_thread(self._deps.records.sync, [self.instance])
            # What others had to tell was told meanwhile, and nobody looks for numbers below theirs again.
            if reported and reported == self.copy.pending[-1:]:
                self._save(self.copy.with_status(self.copy.history, self._deps.number()))
        self._deps.reached(f"told.{history.status.lower()}")
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

    def _save(self, copy: LocalInstance) -> None:
        self._deps.records.save(copy)
        self.copy = copy

    async def _do(self, action: InstanceAction) -> None:
        match action:
            case InstanceAction.CREATE:
                await self._attempt(self._create)
            case InstanceAction.START:
                await self._attempt(self._start)
            case InstanceAction.RESTRICT:
                await self._deps.backends.containers.restrict(self.name, self.copy.order.egress)
            case InstanceAction.STOP:
                await self.backend().stop(self.name)
            case _:
                await self.backend().remove(self.name, force=True)
        self._deps.reached(f"done.{action}")

    async def _attempt(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what a start takes; if that fails, it is part of the history of the instance."""
        order = self.copy.order
        try:
            await work()
        except errors.SkerryError as error:
            situation = self._situation()
            if situation.runs or self.copy.order is not order:  # somebody was quicker; or it is all different
                return
            log.info("instance.not_started", instance=self.instance, error=error.message, detail=error.detail)
            await self._report(steps.not_started(situation, error))

    async def _create(self) -> None:
        order = self.copy.order
        spec = self._deps.translation.spec(self.instance, order.spec)
        backend, images = self._deps.backends.of(order.spec.kind), self._deps.backends.images
        if order.spec.kind is WorkloadKind.CELL:
            await self._make(spec, lambda: backend.create(spec))
            return
        owner = f"instance {self.name}"  # until there is a container, which claims it itself
        pulling = images.ensure(
            spec.image,
            access=order.spec.image_access,
            owner=owner,
            on_progress=self._show_progress(),
        )
        try:
            if (image := await self._unless_order_changes(pulling)) is not None:
                # Of that one and no other: what its name means here need not be what it means to `images`.
                create = self._deps.backends.containers.create
                await self._make(spec, lambda: create(spec, image=image.id, egress=order.egress))
        finally:
            images.release(owner)

    async def _make(self, spec: ContainerSpec, create: Callable[[], Awaitable[object]]) -> None:
        order = self.copy.order
        # On disk before there is a container, so that one of ours can be told from those of others.
        self._save(replace(self.copy, created_spec=spec))
        await asyncio.to_thread(self._deps.records.sync, [self.instance])
        self._deps.reached("made")
        if self.copy.order is order:
            await create()

    def _show_progress(self) -> Callable[[PullProgress], None]:
        """Says now and then how far a pull has come, and still why the try before it failed."""
        reported_at = float("-inf")
        before = steps.failed_before(self.copy.history)

        def show(progress: PullProgress) -> None:
            nonlocal reported_at
            now = self._deps.clock.monotonic()
            if now - reported_at >= _PROGRESS_S and self.copy.history.status is InstanceStatus.STARTING:
                reported_at = now
                self._update_reason(f"pulling: {progress.message}{before}")

        return show

    def _update_reason(self, reason: str) -> None:
        """Say more of the status it has. That is not for the disk: it is over with the agent."""
        history = replace(self.copy.history, reason=reason)
        self.copy = self.copy.with_status(history, self._deps.number())
        self._deps.changed(self.copy)

    async def _start(self) -> None:
        order = self.copy.order
        if await self._unless_order_changes(self._deps.starts.acquire()) is None:
            return
        try:
            if self.copy.order is order:
                await self.backend().start(self.name)
        finally:
            self._deps.starts.release()

    async def _unless_order_changes(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What `work` comes to; it is given up if another order comes meanwhile, and that is None then."""
        order = self.copy.order

        async def order_changed() -> None:
            while self.copy.order is order:
                self._woken.clear()
                await self._woken.wait()

        return await race(work, order_changed())

    async def _pause(self, until: float | None) -> None:
        """Wait for `until`, for another order, or for the end of the run."""
        self._woken.clear()
        waits: list[Awaitable[object]] = [self._woken.wait()]
        if self.runs:
            waits.append(self._end_of_run())
        if until is not None:
            waits.append(self._deps.sleep(max(0.0, until - self._deps.clock.now())))
        await race(*waits)

    async def _end_of_run(self) -> None:
        with suppress(errors.SkerryError):  # nobody knows how it ended; that it has is enough
            await self.backend().wait(self.name)
