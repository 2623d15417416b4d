"""Decides the next step of an instance. Pure.

`next_step` compares the order with the container and with the last report. A step is one report, one action
or one wait; then the decision is made anew, so whatever happened in between, a killed agent included, is only
another situation. Reports follow the state machine of `skerry.model.statuses`, from SCHEDULED on; a status is
reported before the action that it announces.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from skerry.kit.backoff import Backoff
from skerry.model import errors
from skerry.model.containers import ContainerState, ContainerView
from skerry.model.node_messages import SessionConfig
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import RestartMode, WorkloadKind
from skerry.node.agent.instances.exits import RunExit, run_exit
from skerry.node.agent.instances.state import LocalInstance, LocalStatus
from skerry.node.health.decisions import HealthState

# After these, a retry can succeed only if the image or the machine changes.
_PERMANENT = (errors.Invalid, errors.Unprocessable, errors.TooLarge)
_NOT_YET = "not started yet: "
_NEXT_TRY = "; next try at "
_MAX_CAUSE = 400  # of a reason, so that the time of the next try is not cut off


class InstanceAction(enum.StrEnum):
    """An action on the container of an instance, or on its record."""

    CREATE = "create"
    RESTRICT = "restrict"  # to the networks that its order allows
    START = "start"
    STOP = "stop"
    REMOVE = "remove"
    FORGET = "forget"  # it is removed and that is acknowledged: drop the record


class ReportStatus(msgspec.Struct, frozen=True):
    """Store and report a new status."""

    history: LocalStatus


class RunAction(msgspec.Struct, frozen=True):
    action: InstanceAction


class WaitUntil(msgspec.Struct, frozen=True):
    """Wait until `until`, or until something changes."""

    until: float | None = None


InstanceStep = ReportStatus | RunAction | WaitUntil


class InstanceSituation(msgspec.Struct, frozen=True):
    """The input of a decision."""

    copy: LocalInstance
    view: ContainerView | None  # of its own container only
    is_outdated: bool  # the container's spec is not the desired one
    now: float
    config: SessionConfig
    chance: float  # 0 to 1, for the jitter of pauses
    health: HealthState | None = None  # of the current run; None: no checks

    @property
    def history(self) -> LocalStatus:
        return self.copy.history

    @property
    def runs(self) -> bool:
        return self.view is not None and self.view.state is ContainerState.RUNNING

    @property
    def has_unreported_run(self) -> bool:
        """True if there was a run since the last that was reported."""
        view = self.view
        return (
            view is not None
            and view.state is ContainerState.EXITED
            and view.started_at != self.history.last_run_at
        )

    def pause(self, failures: int) -> float:
        """The pause before the next try, after `failures` failures in a row."""
        return self._backoff.delay(failures, lambda: self.chance)

    def is_pending(self, at: float | None) -> bool:
        """True if `at` is still to come. A time further away than any pause comes from a clock that was set
        back."""
        backoff = self._backoff
        return at is not None and self.now < at <= self.now + backoff.cap_s * (1 + backoff.jitter)

    @property
    def _backoff(self) -> Backoff:
        # The first pause must not exceed the longest.
        cap_s = max(self.config.restart_base_s, self.config.restart_cap_s)
        return Backoff(first_s=self.config.restart_base_s, cap_s=cap_s)

    def report(self, status: InstanceStatus, reason: str = "") -> ReportStatus:
        return ReportStatus(self.history.become(status, self.now, reason))


def next_step(situation: InstanceSituation) -> InstanceStep:
    """The next step towards the order."""
    match situation.copy.order.desired:
        case DesiredStatus.RUNNING:
            return _toward_running(situation)
        case DesiredStatus.STOPPED:
            return _toward_stopped(situation)
        case DesiredStatus.DESTROYED:
            return _toward_destroyed(situation)


def _toward_running(situation: InstanceSituation) -> InstanceStep:
    history, view = situation.history, situation.view
    if history.status in TERMINAL:
        return RunAction(InstanceAction.STOP) if situation.runs else WaitUntil()
    if history.status is InstanceStatus.STOPPING:  # desired again before it had ended: first it ends
        return _toward_stopped(situation)
    if view is not None and (situation.is_outdated or view.state is ContainerState.REMOVING):
        is_reported = history.status is InstanceStatus.STARTING
        return (
            RunAction(InstanceAction.REMOVE) if is_reported else ReportStatus(_begin(situation, "made anew"))
        )
    is_container = situation.copy.order.spec.kind is WorkloadKind.CONTAINER
    if is_container and view is not None and view.access != situation.copy.order.access:
        return RunAction(InstanceAction.RESTRICT)
    match history.status:
        case InstanceStatus.RUNNING:
            return _keep_running(situation)
        case InstanceStatus.STARTING:
            return _start(situation)
        case InstanceStatus.CRASHED:
            return _restart(situation)
        case _:
            # It is ordered to run: earlier failures do not count.
            return ReportStatus(replace(_begin(situation), streak=0))


def _begin(situation: InstanceSituation, reason: str = "") -> LocalStatus:
    """Status STARTING; an earlier run does not count for this start."""
    view = situation.view
    last_run_at = (
        view.started_at if view is not None and not situation.runs else situation.history.last_run_at
    )
    return replace(
        situation.history.become(InstanceStatus.STARTING, situation.now, reason), last_run_at=last_run_at
    )


def _start(situation: InstanceSituation) -> InstanceStep:
    history, view = situation.history, situation.view
    if situation.runs or situation.has_unreported_run:
        assert view is not None
        assert view.started_at is not None
        running = history.become(InstanceStatus.RUNNING, view.started_at, "")
        return ReportStatus(
            _unchecked(
                situation,
                replace(running, ip=view.address, ip6=view.address6, last_run_at=view.started_at),
            )
        )
    if situation.is_pending(history.retry_at):
        return WaitUntil(history.retry_at)
    return RunAction(InstanceAction.CREATE if view is None else InstanceAction.START)


def _unchecked(situation: InstanceSituation, history: LocalStatus) -> LocalStatus:
    """`history` of a run that has just begun: no check has a result yet."""
    return _checked(history, HealthState.begin(situation.copy.order.spec.checks), history.at)


def _checked(history: LocalStatus, health: HealthState, at: float) -> LocalStatus:
    checked = history.check(
        has_passed=health.has_passed, has_started=health.has_started, at=at, message=health.message
    )
    return replace(checked, failed_check=health.restart_reason)


def _follow_checks(situation: InstanceSituation) -> InstanceStep:
    """For a running instance: report its health, and end the run if a check requires a restart."""
    history, health, spec = situation.history, situation.health, situation.copy.order.spec
    if history.failed_check:
        return RunAction(InstanceAction.STOP)
    if health is None:
        if spec.decides_readiness or history.has_passed:
            return WaitUntil()
        return ReportStatus(_unchecked(situation, history))  # it has no checks any more
    # A failed check is on disk before the run is ended: it counts as a failure whatever the exit code.
    checked = _checked(history, health, situation.now)
    return WaitUntil() if checked == history else ReportStatus(checked)


def _run_exit(situation: InstanceSituation) -> RunExit:
    """Exit of the last run; one that was ended because of a check has failed, whatever its exit code."""
    ending, reason = run_exit(situation.view), situation.history.failed_check
    return RunExit(reason, None if ending.is_good else ending.exit_code) if reason else ending


def _keep_running(situation: InstanceSituation) -> InstanceStep:
    if situation.runs:
        return _follow_checks(situation)
    copy, history, view = situation.copy, situation.history, situation.view
    ending = _run_exit(situation)
    ended_at = view.exit.at if view is not None and view.exit is not None else situation.now
    has_lasted = ended_at - history.at >= situation.config.restart_reset_s
    history = replace(
        history,
        streak=0 if has_lasted else history.streak,
        last_run_at=history.last_run_at if view is None else view.started_at,
    )
    retry_at = None
    if ending.wants_restart(copy.order.spec.restart, history.streak):
        retry_at = situation.now + situation.pause(history.streak)
    if not ending.is_good:
        status = InstanceStatus.CRASHED
    elif retry_at is None:
        status = InstanceStatus.TERMINATED
    else:
        status, history = InstanceStatus.STARTING, _count(history)
    return ReportStatus(
        history.become(status, ended_at, ending.reason, exit_code=ending.exit_code, retry_at=retry_at)
    )


def _restart(situation: InstanceSituation) -> InstanceStep:
    history = situation.history
    if history.retry_at is None:
        restart = situation.copy.order.spec.restart
        is_spent = restart.is_wanted(1)
        cause = f"all {restart.budget} restarts are used up" if is_spent else f"restart is {restart.when}"
        return ReportStatus(
            history.become(
                InstanceStatus.FAILED,
                situation.now,
                f"{history.reason}; {cause}",
                exit_code=history.exit_code,
            )
        )
    if situation.is_pending(history.retry_at) and not situation.runs:
        return WaitUntil(history.retry_at)
    begun = _begin(situation, history.reason)
    return ReportStatus(_count(replace(begun, exit_code=history.exit_code)))


def _count(history: LocalStatus) -> LocalStatus:
    return replace(history, restarts=history.restarts + 1, streak=history.streak + 1)


def _toward_stopped(situation: InstanceSituation) -> InstanceStep:
    history = situation.history
    if history.status in (InstanceStatus.STARTING, InstanceStatus.RUNNING):
        return situation.report(InstanceStatus.STOPPING)
    if situation.runs:
        return RunAction(InstanceAction.STOP)
    if history.status is InstanceStatus.STOPPED or history.status in TERMINAL:
        return WaitUntil()
    view = situation.view
    if history.status is InstanceStatus.SCHEDULED or view is None or view.exit is None:
        return situation.report(InstanceStatus.STOPPED)
    ending = run_exit(view)
    return ReportStatus(
        history.become(InstanceStatus.STOPPED, situation.now, ending.reason, exit_code=ending.exit_code)
    )


def _toward_destroyed(situation: InstanceSituation) -> InstanceStep:
    copy, history = situation.copy, situation.history
    if situation.view is not None:
        return RunAction(InstanceAction.REMOVE)
    if not history.is_removed and not copy.is_stale:
        removed = history.become(InstanceStatus.TERMINATED, situation.now, "removed")
        return ReportStatus(replace(removed, at=situation.now, is_removed=True))
    return WaitUntil() if copy.pending else RunAction(InstanceAction.FORGET)


def not_started(situation: InstanceSituation, error: errors.SkerryError) -> LocalStatus:
    """Status after a try to start that failed before anything ran.

    A temporary failure, such as an image that cannot be pulled or a port in use, is retried after a pause,
    within the restart budget. With `restart: always` every failure is retried, even a spec that this node
    refuses: the node's settings may change.
    """
    history, policy = situation.history, situation.copy.order.spec.restart
    is_permanent = isinstance(error, _PERMANENT) and policy.when is not RestartMode.ALWAYS
    tries = history.streak + 1
    tried = "" if tries == 1 else f"; tried {tries} times"
    if is_permanent or not policy.is_due(1, history.streak):
        return history.become(InstanceStatus.FAILED, situation.now, f"not started: {error.message}{tried}")
    retry_at = situation.now + situation.pause(history.streak)
    next_try = f"{_NEXT_TRY}{datetime.fromtimestamp(int(retry_at), UTC):%Y-%m-%d %H:%M:%S UTC}"
    waiting = history.become(
        InstanceStatus.STARTING,
        situation.now,
        f"{_NOT_YET}{error.message[:_MAX_CAUSE]}{tried}{next_try}",
        exit_code=history.exit_code,
        retry_at=retry_at,
    )
    return replace(waiting, streak=history.streak + 1)


def failed_before(history: LocalStatus) -> str:
    """Why the previous try failed, to be appended to the reason of the current one."""
    if not history.reason.startswith(_NOT_YET):
        return ""
    return f"; the try before failed: {history.reason.removeprefix(_NOT_YET).rpartition(_NEXT_TRY)[0]}"
