"""What to do next with an instance: the decision, without touching anything.

`next_step` compares what is wanted with what the container is now and with what was told last. A step is one
thing to tell, to do or to wait for; after it the question is asked anew, so whatever happened in between,
an agent that died included, is only another state to go on from. What is told follows the state machine of
`skerry.model.statuses`, from SCHEDULED on: a status is told before what it announces is done.
"""

from __future__ import annotations

import enum

import msgspec
from msgspec.structs import replace

from skerry.kit.backoff import Backoff
from skerry.model import errors
from skerry.model.containers import ContainerState, ContainerView
from skerry.model.sessions import Welcome
from skerry.model.statuses import FINAL, Desired, Status
from skerry.node.instances.endings import ending_of
from skerry.node.instances.histories import Copy, History

# No try will ever succeed after these; after all others one may.
_IMPOSSIBLE = (errors.Invalid, errors.Unprocessable, errors.TooLarge)


class Act(enum.StrEnum):
    """Something to do to the container of an instance, or to our record of it."""

    CREATE = "create"
    START = "start"
    STOP = "stop"
    REMOVE = "remove"
    FORGET = "forget"  # it is gone, and that is known: so is our record


class Tell(msgspec.Struct, frozen=True):
    """Its status changes: write this down, and report it."""

    history: History


class Do(msgspec.Struct, frozen=True):
    act: Act


class Wait(msgspec.Struct, frozen=True):
    """There is nothing to do until `until`, or until something changes."""

    until: float | None = None


Step = Tell | Do | Wait


class Situation(msgspec.Struct, frozen=True):
    """All that a decision hangs on."""

    copy: Copy
    view: ContainerView | None  # of its own container; one of the same name that is not ours does not count
    is_outdated: bool  # the container is of another spec than is wanted
    now: float
    terms: Welcome
    chance: float  # 0 to 1: pauses differ by it

    @property
    def history(self) -> History:
        return self.copy.history

    @property
    def runs(self) -> bool:
        return self.view is not None and self.view.state is ContainerState.RUNNING

    @property
    def has_run_unseen(self) -> bool:
        """True if there was a run since the last that was told of."""
        view = self.view
        return (
            view is not None and view.state is ContainerState.EXITED and view.started_at != self.history.seen
        )

    def pause(self, failures: int) -> float:
        """How long to wait after `failures` failures in a row before this one."""
        return self._backoff.delay(failures, lambda: self.chance)

    def is_ahead(self, at: float | None) -> bool:
        """True if `at` is to be waited for; a time beyond any pause is one of a clock that was set back."""
        backoff = self._backoff
        return at is not None and self.now < at <= self.now + backoff.cap_s * (1 + backoff.jitter)

    @property
    def _backoff(self) -> Backoff:
        # A first pause above the longest would make the longest a lie.
        cap_s = max(self.terms.restart_base_s, self.terms.restart_cap_s)
        return Backoff(first_s=self.terms.restart_base_s, cap_s=cap_s)

    def tell(self, status: Status, reason: str = "") -> Tell:
        return Tell(self.history.become(status, self.now, reason))


def next_step(situation: Situation) -> Step:
    """What to do now, so that in the end it is as ordered."""
    match situation.copy.order.desired:
        case Desired.RUNNING:
            return _toward_running(situation)
        case Desired.STOPPED:
            return _toward_stopped(situation)
        case Desired.DESTROYED:
            return _toward_destroyed(situation)


def _toward_running(situation: Situation) -> Step:
    history, view = situation.history, situation.view
    if history.status in FINAL:
        return Do(Act.STOP) if situation.runs else Wait()
    if history.status is Status.STOPPING:  # wanted again before it had ended: first it ends
        return _toward_stopped(situation)
    if view is not None and (situation.is_outdated or view.state is ContainerState.REMOVING):
        is_told = history.status is Status.STARTING
        return Do(Act.REMOVE) if is_told else Tell(_begin(situation, "made anew"))
    match history.status:
        case Status.RUNNING:
            return _keep_running(situation)
        case Status.STARTING:
            return _start(situation)
        case Status.CRASHED:
            return _restart(situation)
        case _:
            # Somebody wants it to run: what failed before that does not count.
            return Tell(replace(_begin(situation), streak=0))


def _begin(situation: Situation, reason: str = "") -> History:
    """From now on it is being started; a run that is over already is none of this start."""
    view = situation.view
    seen = view.started_at if view is not None and not situation.runs else situation.history.seen
    return replace(situation.history.become(Status.STARTING, situation.now, reason), seen=seen)


def _start(situation: Situation) -> Step:
    history, view = situation.history, situation.view
    if situation.runs or situation.has_run_unseen:
        assert view is not None
        assert view.started_at is not None
        running = history.become(Status.RUNNING, view.started_at, "")
        return Tell(replace(running, ip=view.address, seen=view.started_at))
    if situation.is_ahead(history.retry_at):
        return Wait(history.retry_at)
    return Do(Act.CREATE if view is None else Act.START)


def _keep_running(situation: Situation) -> Step:
    if situation.runs:
        return Wait()
    copy, history, view = situation.copy, situation.history, situation.view
    ending = ending_of(view)
    ended_at = view.exit.at if view is not None and view.exit is not None else situation.now
    has_lasted = ended_at - history.at >= situation.terms.restart_reset_s
    history = replace(
        history,
        streak=0 if has_lasted else history.streak,
        seen=history.seen if view is None else view.started_at,
    )
    retry_at = None
    if ending.wants_restart(copy.order.spec.restart, history.streak):
        retry_at = situation.now + situation.pause(history.streak)
    if not ending.is_good:
        status = Status.CRASHED
    elif retry_at is None:
        status = Status.TERMINATED
    else:
        status, history = Status.STARTING, _count(history)
    return Tell(
        history.become(status, ended_at, ending.reason, exit_code=ending.exit_code, retry_at=retry_at)
    )


def _restart(situation: Situation) -> Step:
    history = situation.history
    if history.retry_at is None:
        restart = situation.copy.order.spec.restart
        is_spent = restart.is_wanted(1)
        why = f"all {restart.budget} restarts are used up" if is_spent else f"restart is {restart.when}"
        return Tell(
            history.become(
                Status.FAILED, situation.now, f"{history.reason}; {why}", exit_code=history.exit_code
            )
        )
    if situation.is_ahead(history.retry_at) and not situation.runs:
        return Wait(history.retry_at)
    begun = _begin(situation, history.reason)
    return Tell(_count(replace(begun, exit_code=history.exit_code)))


def _count(history: History) -> History:
    return replace(history, restarts=history.restarts + 1, streak=history.streak + 1)


def _toward_stopped(situation: Situation) -> Step:
    history = situation.history
    if history.status in (Status.STARTING, Status.RUNNING):
        return situation.tell(Status.STOPPING)
    if situation.runs:
        return Do(Act.STOP)
    if history.status is Status.STOPPED or history.status in FINAL:
        return Wait()
    view = situation.view
    if history.status is Status.SCHEDULED or view is None or view.exit is None:
        return situation.tell(Status.STOPPED)
    ending = ending_of(view)
    return Tell(history.become(Status.STOPPED, situation.now, ending.reason, exit_code=ending.exit_code))


def _toward_destroyed(situation: Situation) -> Step:
    copy, history = situation.copy, situation.history
    if situation.view is not None:
        return Do(Act.REMOVE)
    if not history.is_gone and not copy.is_stale:
        gone = history.become(Status.TERMINATED, situation.now, "removed")
        return Tell(replace(gone, at=situation.now, is_gone=True))
    return Wait() if copy.pending else Do(Act.FORGET)


def not_started(situation: Situation, error: errors.SkerryError) -> History:
    """What it is after a try to start it that failed before anything ran.

    What can never work is over at once; all else, an image that cannot be pulled or a port that somebody has,
    is tried again after a pause, as often as its budget allows.
    """
    history, policy = situation.history, situation.copy.order.spec.restart
    if isinstance(error, _IMPOSSIBLE) or not policy.is_due(1, history.streak):
        tries = history.streak + 1
        reason = error.message if tries == 1 else f"{error.message}; tried {tries} times"
        return history.become(Status.FAILED, situation.now, f"not started: {reason}")
    retry_at = situation.now + situation.pause(history.streak)
    waiting = history.become(
        Status.STARTING,
        situation.now,
        f"not started yet: {error.message}",
        exit_code=history.exit_code,
        retry_at=retry_at,
    )
    return replace(waiting, streak=history.streak + 1)
