"""What the results of an instance's health checks mean: whether it is ready, or has to be restarted. Pure.

`skerry.node.health.monitor` runs checks and records their results here; `skerry.node.agent.instances.steps`
acts on what follows from them. A check changes its verdict after so many results in a row as its thresholds
say; failures during its grace period do not count.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck

_MAX_MESSAGE = 300
_MAX_TARGET = 120
# An instance that has just started is asked more often than its interval says, as long as failures decide
# nothing: it should not wait for a minute to be put in service. Commands cost too much for that.
_EAGER_S = 1.0
_EAGER_AGE_S = 60.0


class CheckResult(NamedTuple):
    """What one run of a check found."""

    has_passed: bool
    message: str = ""  # why it has not


class CheckState(msgspec.Struct, frozen=True):
    """What is known of one check in this run of the instance."""

    is_healthy: bool | None = None  # None: undecided
    passes: int = 0  # in a row, up to the threshold
    failures: int = 0  # in a row that count, up to the threshold
    message: str = ""  # of the last failure since it passed

    def record(self, check: HealthCheck, result: CheckResult, age_s: float) -> CheckState:
        """This after another result, `age_s` seconds after the start of the instance."""
        if result.has_passed:
            if self.is_healthy and self.passes == check.healthy_after and not self.message:
                return self  # nearly every result of every check
            passes = min(self.passes + 1, check.healthy_after)
            is_healthy = True if passes >= check.healthy_after else self.is_healthy
            return CheckState(is_healthy, passes, message="" if is_healthy else self.message)
        message = result.message[:_MAX_MESSAGE]
        if age_s < check.grace_s:
            return CheckState(self.is_healthy, message=message)
        failures = min(self.failures + 1, check.unhealthy_after)
        is_healthy = False if failures >= check.unhealthy_after else self.is_healthy
        return CheckState(is_healthy, failures=failures, message=message)


class HealthState(msgspec.Struct, frozen=True):
    """What all checks of one run of an instance say together."""

    checks: tuple[HealthCheck, ...]
    states: tuple[CheckState, ...]

    @classmethod
    def begin(
        cls, checks: tuple[HealthCheck, ...], *, has_started: bool = False, has_passed: bool = False
    ) -> HealthState:
        """For a run that begins; or for one that goes on, of which it is known that its startup checks have
        passed, or its readiness checks too. That holds until they say otherwise."""

        def first(check: HealthCheck) -> CheckState:
            is_healthy = {
                CheckRole.STARTUP: has_started or has_passed,
                CheckRole.READINESS: has_passed,
                CheckRole.LIVENESS: False,
            }[check.role]
            return CheckState(True) if is_healthy else CheckState()

        return cls(checks, tuple(map(first, checks)))

    def record(self, index: int, result: CheckResult, age_s: float) -> HealthState:
        """This after another result of the check `index`; itself if the result changes nothing."""
        state = self.states[index].record(self.checks[index], result, age_s)
        if state is self.states[index]:
            return self
        states = list(self.states)
        states[index] = state
        return replace(self, states=tuple(states))

    def is_active(self, index: int) -> bool:
        """True if the check `index` is to be run: startup checks until they have passed, others after that.
        None is once the instance has to be restarted."""
        if self.restart_reason:
            return False
        if self.checks[index].role is CheckRole.STARTUP:
            return not self.states[index].is_healthy
        return self.has_started

    def pause_s(self, index: int, age_s: float) -> float:
        """How long after the last run of the check `index` began the next one does."""
        check, state = self.checks[index], self.states[index]
        decides_nothing = age_s < check.grace_s or (
            check.role is CheckRole.READINESS and state.is_healthy is not True
        )
        is_eager = (
            bool(state.message)
            and decides_nothing
            and age_s < _EAGER_AGE_S
            and check.method is not CheckMethod.EXEC
        )
        return min(check.interval_s, _EAGER_S) if is_eager else check.interval_s

    @property
    def has_started(self) -> bool:
        """True if all startup checks have passed, or there are none."""
        return all(
            state.is_healthy
            for check, state in zip(self.checks, self.states, strict=True)
            if check.role is CheckRole.STARTUP
        )

    @property
    def has_passed(self) -> bool:
        """True if the instance can be in service, as far as its checks know."""
        return not self.restart_reason and all(
            state.is_healthy
            for check, state in zip(self.checks, self.states, strict=True)
            if check.role is not CheckRole.LIVENESS
        )

    @property
    def restart_reason(self) -> str:
        """Why the instance has to be restarted; empty: it has not to."""
        for check, state in zip(self.checks, self.states, strict=True):
            if check.role is not CheckRole.READINESS and state.is_healthy is False:
                return _failed(check, state)
        return ""

    @property
    def message(self) -> str:
        """Why it has not passed; empty: it has."""
        if reason := self.restart_reason:
            return reason
        for role in (CheckRole.STARTUP, CheckRole.READINESS):
            for check, state in zip(self.checks, self.states, strict=True):
                if check.role is not role or state.is_healthy:
                    continue
                if state.is_healthy is False:
                    return _failed(check, state)
                reason = f": {state.message}" if state.message else ""
                return f"{_name(check)} has not passed yet{reason}"
        return ""


def _failed(check: HealthCheck, state: CheckState) -> str:
    times = check.unhealthy_after
    return f"{_name(check)} failed: {state.message} ({times} {'time' if times == 1 else 'times'})"


def _name(check: HealthCheck) -> str:
    return f"{check.role} check {check.target[:_MAX_TARGET]}"
