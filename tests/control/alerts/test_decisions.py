"""What becomes of alerts, and when receivers are notified."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.control.alerts import decisions
from skerry.control.alerts.decisions import AlertSubject
from skerry.model.alerts import (
    MAX_ACTIVE,
    AlertCondition,
    AlertRule,
    AlertState,
    AlertStatus,
    ReceiverKind,
)

RULE = AlertRule(
    id="r",
    name="nodes",
    condition=AlertCondition.NODE_LOST,
    receiver=ReceiverKind.WEBHOOK,
    shown="http://hooks/...",
    digest="",
    created_at=0.0,
    for_s=30.0,
    resolve_after_s=20.0,
    repeat_s=1000.0,
)


def seen(*nodes: str) -> list[AlertSubject]:
    return [AlertSubject({"node": node}, f"{node} is lost") for node in nodes]


def after(status: AlertStatus, now: float, *nodes: str, rule: AlertRule = RULE) -> AlertStatus:
    return decisions.evaluate(rule, status, seen(*nodes), now).status


def states(status: AlertStatus) -> dict[str, str]:
    return {alert.labels["node"]: alert.state.value for alert in status.alerts}


NONE = AlertStatus("r")


class TestEvaluate:
    def test_a_condition_fires_when_it_has_held_for_long_enough(self) -> None:
        status = after(NONE, 100.0, "a")
        assert states(status) == {"a": "pending"}
        assert states(after(status, 129.0, "a")) == {"a": "pending"}
        change = decisions.evaluate(RULE, status, seen("a"), 130.0)
        assert states(change.status) == {"a": "firing"}
        assert [alert.fired_at for alert in change.fired] == [130.0]

    def test_one_that_did_not_hold_in_between_begins_anew(self) -> None:
        status = after(after(NONE, 100.0, "a"), 120.0)
        assert status.alerts == ()
        assert states(after(status, 131.0, "a")) == {"a": "pending"}

    def test_without_a_time_it_fires_at_once(self) -> None:
        assert states(after(NONE, 1.0, "a", rule=replace(RULE, for_s=0.0))) == {"a": "firing"}

    def test_one_that_comes_and_goes_is_not_resolved(self) -> None:
        firing = after(after(NONE, 0.0, "a"), 30.0, "a")
        gone = after(firing, 40.0)
        assert states(gone) == {"a": "firing"}
        back = after(gone, 55.0, "a")
        assert back.alerts[0].absent_since is None
        assert states(after(after(back, 60.0), 79.0)) == {"a": "firing"}

    def test_it_ends_when_it_was_last_seen_to_hold(self) -> None:
        firing = after(after(NONE, 0.0, "a"), 30.0, "a")
        change = decisions.evaluate(RULE, after(firing, 40.0), [], 60.0)
        [alert] = change.resolved
        assert (alert.state, alert.resolved_at) == (AlertState.RESOLVED, 40.0)

    def test_subjects_beyond_the_limit_are_counted(self) -> None:
        nodes = [f"n{number:03}" for number in range(MAX_ACTIVE + 7)]
        status = after(NONE, 0.0, *nodes)
        assert (len(status.alerts), status.left_out) == (MAX_ACTIVE, 7)

    def test_what_cannot_be_delivered_is_forgotten_a_day_after_its_end(self) -> None:
        resolved = after(after(after(after(NONE, 0.0, "a"), 30.0, "a"), 40.0), 60.0)
        assert states(after(resolved, 80_000.0)) == {"a": "resolved"}
        assert after(resolved, 90_000.0).alerts == ()


class TestNotifications:
    def test_a_receiver_is_told_once_of_what_fires_and_once_of_its_end(self) -> None:
        firing = after(after(NONE, 0.0, "a"), 30.0, "a")
        sent = decisions.to_notify(RULE, firing, 30.0)
        told = decisions.notified(firing, sent, 31.0)
        assert decisions.to_notify(RULE, told, 40.0) == ()
        resolved = after(after(told, 50.0), 70.0)
        sent = decisions.to_notify(RULE, resolved, 70.0)
        assert [alert.state for alert in sent] == [AlertState.RESOLVED]
        assert decisions.notified(resolved, sent, 71.0).alerts == ()

    def test_what_is_pending_is_not_told(self) -> None:
        assert decisions.to_notify(RULE, after(NONE, 0.0, "a"), 10.0) == ()

    def test_one_that_ended_before_it_could_be_told_of_is_told_of_all_the_same(self) -> None:
        resolved = after(after(after(after(NONE, 0.0, "a"), 30.0, "a"), 40.0), 60.0)
        [alert] = decisions.to_notify(RULE, resolved, 60.0)
        assert (alert.fired_at, alert.resolved_at) == (30.0, 40.0)

    def test_one_that_is_back_before_its_end_was_told_goes_on(self) -> None:
        firing = after(after(NONE, 0.0, "a"), 30.0, "a")
        told = decisions.notified(firing, firing.alerts, 31.0)
        back = after(after(after(told, 40.0), 60.0), 65.0, "a")
        assert states(back) == {"a": "firing"}
        assert decisions.to_notify(RULE, back, 65.0) == ()

    def test_a_notification_has_all_that_fires(self) -> None:
        rule = replace(RULE, for_s=0.0)
        first = after(NONE, 0.0, "a", rule=rule)
        both = after(decisions.notified(first, first.alerts, 1.0), 10.0, "a", "b", rule=rule)
        assert len(decisions.to_notify(rule, both, 10.0)) == 2

    def test_what_goes_on_firing_is_repeated(self) -> None:
        firing = after(after(NONE, 0.0, "a"), 30.0, "a")
        told = decisions.notified(firing, firing.alerts, 31.0)
        assert decisions.to_notify(RULE, told, 1030.0) == ()
        assert len(decisions.to_notify(RULE, told, 1031.0)) == 1

    def test_after_a_failure_there_is_a_pause(self) -> None:
        firing = after(after(NONE, 0.0, "a"), 30.0, "a")
        failed = decisions.not_notified(firing, "refused", 50.0)
        assert decisions.to_notify(RULE, failed, 49.0) == ()
        assert len(decisions.to_notify(RULE, failed, 50.0)) == 1
        assert decisions.next_at(RULE, failed, 30.0, 60.0) == 50.0
        told = decisions.notified(failed, failed.alerts, 50.0)
        assert (told.attempts, told.error, told.retry_at) == (0, "", 0.0)

    def test_what_happens_while_a_notification_is_under_way_is_not_taken_as_told(self) -> None:
        rule = replace(RULE, for_s=0.0, resolve_after_s=0.0)
        firing = after(NONE, 0.0, "a", rule=rule)
        resolved = after(firing, 5.0, rule=rule)
        told = decisions.notified(resolved, firing.alerts, 6.0)
        assert [one.state for one in decisions.to_notify(rule, told, 6.0)] == [AlertState.RESOLVED]

    @pytest.mark.parametrize(("now", "at"), [(0.0, 10.0), (25.0, 30.0)])
    def test_the_next_evaluation_is_when_something_is_due(self, now: float, at: float) -> None:
        assert decisions.next_at(RULE, after(NONE, 0.0, "a"), now, 10.0) == at


Step = tuple[float, frozenset[str], bool]


@given(
    st.lists(
        st.tuples(st.floats(0.5, 40.0), st.frozensets(st.sampled_from("abc")), st.booleans()), max_size=40
    )
)
def test_a_receiver_that_answers_at_times_knows_in_the_end_all_that_happened(steps: list[Step]) -> None:
    """Never resolved before firing, nothing twice without a repeat, and at the end both sides agree."""
    rule = replace(RULE, for_s=5.0, resolve_after_s=5.0, repeat_s=1e6)
    status, now = NONE, 0.0
    fired: list[tuple[str, float | None]] = []
    told: dict[tuple[str, float | None], list[str]] = {}
    quiet: Iterable[Step] = [(10.0, frozenset(), True)] * 4
    for pause, nodes, is_up in (*steps, *quiet):
        now += pause
        change = decisions.evaluate(rule, status, seen(*nodes), now)
        status = change.status
        fired += [(one.labels["node"], one.fired_at) for one in change.fired]
        if sent := decisions.to_notify(rule, status, now):
            if not is_up:
                status = decisions.not_notified(status, "down", now)
                continue
            for one in sent:
                messages = told.setdefault((one.labels["node"], one.fired_at), [])
                if not messages or messages[-1] != one.state.value:
                    messages.append(one.state.value)
            status = decisions.notified(status, sent, now)
    assert set(fired) == set(told)
    assert status.alerts == ()
    assert all(messages[-1] == "resolved" and len(messages) <= 2 for messages in told.values())
