"""What results of checks mean: thresholds, grace, roles, and how a run goes on under another agent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.node.health.decisions import CheckResult, HealthState

PASSED = CheckResult(True)
REFUSED = CheckResult(False, "connection refused")


def check(role: str = "readiness", **more: object) -> HealthCheck:
    return HealthCheck(CheckRole(role), CheckMethod.HTTP, 80, "/health", **more)  # type: ignore[arg-type]


def after(state: HealthState, *results: CheckResult, index: int = 0, age_s: float = 1e6) -> HealthState:
    for result in results:
        state = state.record(index, result, age_s)
    return state


def test_without_checks_an_instance_has_passed_and_has_started() -> None:
    nothing = HealthState.begin(())
    assert nothing.has_passed
    assert nothing.has_started
    assert nothing.message == nothing.restart_reason == ""


def test_a_readiness_check_passes_after_so_many_passes_in_a_row() -> None:
    state = HealthState.begin((check(healthy_after=2),))
    assert state.message == "readiness check http:80/health has not passed yet"
    state = after(state, PASSED, REFUSED, PASSED)
    assert not state.has_passed
    assert state.message == "readiness check http:80/health has not passed yet: connection refused"
    assert after(state, PASSED).has_passed
    assert after(state, PASSED).message == ""


def test_a_readiness_check_fails_after_so_many_failures_in_a_row_and_restarts_nothing() -> None:
    ready = HealthState.begin((check(),), has_passed=True)
    assert after(ready, REFUSED, REFUSED).has_passed
    assert after(ready, REFUSED, REFUSED, PASSED, REFUSED, REFUSED).has_passed
    failed = after(ready, REFUSED, REFUSED, CheckResult(False, "HTTP 503"))
    assert not failed.has_passed
    assert failed.message == "readiness check http:80/health failed: HTTP 503 (3 times)"
    assert failed.restart_reason == ""
    assert after(failed, PASSED).has_passed


def test_a_failed_liveness_check_asks_for_a_restart_and_no_check_runs_after_it() -> None:
    state = HealthState.begin((check("liveness"), check()), has_passed=True)
    failed = after(state, REFUSED, REFUSED, REFUSED)
    assert failed.restart_reason == "liveness check http:80/health failed: connection refused (3 times)"
    assert not failed.has_passed
    assert not failed.is_active(0)
    assert not failed.is_active(1)


def test_the_others_wait_for_the_startup_check_and_it_is_not_run_again() -> None:
    state = HealthState.begin((check("startup"), check("liveness"), check()))
    assert [state.is_active(index) for index in range(3)] == [True, False, False]
    assert not after(state, PASSED, index=2).has_passed  # a readiness check alone does not count
    started = after(state, PASSED)
    assert [started.is_active(index) for index in range(3)] == [False, True, True]
    assert after(started, PASSED, index=2).has_passed


def test_a_startup_check_that_fails_asks_for_a_restart() -> None:
    state = after(HealthState.begin((check("startup", unhealthy_after=1),)), REFUSED)
    assert state.restart_reason == "startup check http:80/health failed: connection refused (1 time)"


def test_failures_in_the_grace_period_do_not_count_and_passes_do() -> None:
    state = HealthState.begin((check("liveness", grace_s=10, unhealthy_after=1), check(grace_s=10)))
    young = after(state, *[REFUSED] * 5, age_s=9.9)
    assert not young.restart_reason
    assert after(young, REFUSED, age_s=10.1).restart_reason
    assert after(young, PASSED, index=1, age_s=1).has_passed


def test_an_instance_that_goes_on_keeps_what_was_known_of_it() -> None:
    checks = (check("startup"), check(), check("liveness"))
    ready = HealthState.begin(checks, has_started=True, has_passed=True)
    assert ready.has_passed
    assert not ready.is_active(0)
    unready = HealthState.begin(checks, has_started=True)
    assert not unready.has_passed
    assert not unready.is_active(0)  # it has started long ago: to ask again could only restart it


def test_who_has_just_started_is_asked_every_second_until_it_is_ready() -> None:
    state = HealthState.begin((check(interval_s=30), check("liveness", interval_s=30)))
    assert state.pause_s(0, 1.0) == 30
    tried = after(state, REFUSED, age_s=1.0)
    assert tried.pause_s(0, 1.0) == 1.0
    assert tried.pause_s(0, 61.0) == 30  # it may never be
    assert after(tried, PASSED).pause_s(0, 2.0) == 30
    assert after(state, REFUSED, index=1, age_s=1.0).pause_s(1, 1.0) == 30  # these failures count
    command = HealthCheck(CheckRole.READINESS, CheckMethod.EXEC, command=("true",), interval_s=30)
    assert after(HealthState.begin((command,)), REFUSED).pause_s(0, 1.0) == 30


def test_a_pass_of_what_has_passed_gives_the_same_state() -> None:
    state = HealthState.begin((check("readiness", healthy_after=2),))
    once = state.record(0, PASSED, 0.0)
    twice = once.record(0, PASSED, 0.0)
    assert once is not state
    assert twice is not once
    assert twice.record(0, PASSED, 0.0) is twice
    assert twice.record(0, REFUSED, 1e6) is not twice


def test_messages_have_a_bearable_length() -> None:
    command = HealthCheck(CheckRole.LIVENESS, CheckMethod.EXEC, command=("x" * 1000,) * 10, unhealthy_after=1)
    state = after(HealthState.begin((command,)), CheckResult(False, "y" * 10_000))
    assert len(state.restart_reason) < 500


checks = st.builds(
    HealthCheck,
    st.sampled_from(CheckRole),
    st.just(CheckMethod.TCP),
    st.just(80),
    healthy_after=st.integers(1, 4),
    unhealthy_after=st.integers(1, 4),
    grace_s=st.sampled_from([0.0, 5.0]),
)
steps = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 3)), max_size=60)


@given(st.lists(checks, min_size=1, max_size=4).map(tuple), steps, st.booleans())
def test_verdicts_follow_from_the_last_results_in_a_row(
    some: tuple[HealthCheck, ...], results: list[tuple[int, bool, float]], was_ready: bool
) -> None:
    state = HealthState.begin(some, has_started=was_ready, has_passed=was_ready)
    seen: list[list[bool]] = [[] for _ in some]  # results that count, of each check
    verdicts: list[bool | None] = [
        True if was_ready and one.role is not CheckRole.LIVENESS else None for one in some
    ]
    age_s = 0.0
    for index, has_passed, pause_s in results:
        index %= len(some)
        age_s += pause_s
        if not state.is_active(index):
            continue
        one = some[index]
        before = state
        state = state.record(index, CheckResult(has_passed, "no"), age_s)
        if has_passed or age_s >= one.grace_s:
            seen[index].append(has_passed)
        else:
            seen[index].clear()  # it breaks a row of passes, and begins none of failures
        if seen[index][-one.healthy_after :] == [True] * one.healthy_after:
            verdicts[index] = True
        if seen[index][-one.unhealthy_after :] == [False] * one.unhealthy_after:
            verdicts[index] = False
        assert [each.is_healthy for each in state.states] == verdicts
        if before.has_passed and not state.has_passed:
            assert not has_passed
        if not before.has_passed and state.has_passed:
            assert has_passed
        assert bool(state.message) is not state.has_passed
        decides_restart = [
            verdict is False
            for verdict, each in zip(verdicts, some, strict=True)
            if each.role is not CheckRole.READINESS
        ]
        assert bool(state.restart_reason) is any(decides_restart)


@pytest.mark.parametrize("role", CheckRole)
@given(results=st.lists(st.booleans(), max_size=40))
def test_only_liveness_and_startup_restart(role: CheckRole, results: list[bool]) -> None:
    state = HealthState.begin((check(role.value),))
    for has_passed in results:
        if state.is_active(0):
            state = state.record(0, CheckResult(has_passed, "no"), 1e6)
    if role is CheckRole.READINESS:
        assert not state.restart_reason
