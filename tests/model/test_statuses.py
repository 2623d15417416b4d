"""The state machine, pair by pair, against tables written out here on their own."""

from __future__ import annotations

import itertools

import pytest

from skerry.model import errors, statuses
from skerry.model.statuses import InstanceStatus, NodeStatus

# The machine of the Kudo contract: one word per arrow.
CONTRACT = """
SCHEDULING -> SCHEDULED
SCHEDULED -> STARTING
STARTING -> RUNNING
RUNNING -> STOPPING CRASHED TERMINATED
STOPPING -> STOPPED
CRASHED -> STARTING SCHEDULING FAILED
STOPPED -> SCHEDULING STARTING
SCHEDULING -> DESTROYING
SCHEDULED -> DESTROYING
STARTING -> DESTROYING
RUNNING -> DESTROYING
STOPPING -> DESTROYING
STOPPED -> DESTROYING
CRASHED -> DESTROYING
DESTROYING -> TERMINATED
"""

# What its other rows need: FAILED is also what never ran; a lost node, or one that is drained, gives back
# what it had; what ended well may be wanted again; and a wish to stop is answered in every state, not only
# while running.
BEYOND = """
STARTING -> FAILED
RUNNING -> STARTING SCHEDULING
SCHEDULED -> SCHEDULING
STARTING -> SCHEDULING
SCHEDULING -> STOPPED
SCHEDULED -> STOPPED
STARTING -> STOPPING
CRASHED -> STOPPED
"""


def arrows(table: str) -> set[tuple[str, str]]:
    rows = (line.split(" -> ") for line in table.strip().splitlines())
    return {(source, target) for source, targets in rows for target in targets.split()}


ALLOWED = arrows(CONTRACT) | arrows(BEYOND)


def test_the_names_are_the_union_of_both_documents() -> None:
    older = "RUNNING STARTING STOPPED STOPPING DESTROYING TERMINATED CRASHED FAILED SCHEDULING SCHEDULED"
    newer = "RUNNING STARTING STOPPED STOPPING DESTROYING TERMINATED FAILED SCHEDULING SCHEDULED"
    assert {status.value for status in InstanceStatus} == set(older.split()) | set(newer.split())


@pytest.mark.parametrize(("now", "then"), list(itertools.product(InstanceStatus, InstanceStatus)))
def test_every_pair_is_as_the_table_says(now: InstanceStatus, then: InstanceStatus) -> None:
    expected = now is then or (now.value, then.value) in ALLOWED
    assert statuses.may_become(now, then) is expected
    if expected:
        statuses.check(now, then)
    else:
        with pytest.raises(errors.FailedPrecondition, match=now.value):
            statuses.check(now, then)


def test_final_is_final_and_nothing_else_is() -> None:
    assert {InstanceStatus.TERMINATED, InstanceStatus.FAILED} == statuses.TERMINAL
    assert {status for status in InstanceStatus if not statuses.TRANSITIONS[status]} == statuses.TERMINAL


def test_everything_that_is_not_final_can_be_destroyed() -> None:
    for status in set(InstanceStatus) - statuses.TERMINAL - {InstanceStatus.DESTROYING}:
        assert statuses.may_become(status, InstanceStatus.DESTROYING)


def test_running_is_reached_only_from_starting() -> None:
    assert [one for one in InstanceStatus if InstanceStatus.RUNNING in statuses.TRANSITIONS[one]] == [
        InstanceStatus.STARTING
    ]


def test_an_instance_without_room_keeps_waiting_and_cannot_fail() -> None:
    assert statuses.may_become(InstanceStatus.SCHEDULING, InstanceStatus.SCHEDULING)
    assert not statuses.may_become(InstanceStatus.SCHEDULING, InstanceStatus.FAILED)


def test_a_refusal_says_what_is_possible() -> None:
    with pytest.raises(
        errors.FailedPrecondition, match=r"is STOPPING and cannot become RUNNING.*DESTROYING, STOPPED"
    ):
        statuses.check(InstanceStatus.STOPPING, InstanceStatus.RUNNING)
    with pytest.raises(errors.FailedPrecondition, match="final; create a new instance"):
        statuses.check(InstanceStatus.TERMINATED, InstanceStatus.RUNNING)


def test_a_node_is_told_in_the_words_that_mean_something_of_nodes() -> None:
    expected = {
        "STARTING": NodeStatus.REGISTERING,
        "RUNNING": NodeStatus.READY,
        "STOPPING": NodeStatus.DRAINING,
        "STOPPED": NodeStatus.DRAINED,
        "TERMINATED": NodeStatus.LEFT,
        "FAILED": NodeStatus.LOST,
        "CRASHED": NodeStatus.LOST,
    }
    assert {name: statuses.of_node(InstanceStatus(name)) for name in expected} == expected


@pytest.mark.parametrize(
    "status", [InstanceStatus.SCHEDULING, InstanceStatus.SCHEDULED, InstanceStatus.DESTROYING]
)
def test_the_other_words_are_refused_of_nodes(status: InstanceStatus) -> None:
    with pytest.raises(errors.Invalid, match=f"a node cannot be {status}"):
        statuses.of_node(status)


def test_a_way_goes_by_what_may_follow_on_a_node_and_is_the_shortest() -> None:
    assert statuses.shortest_path(InstanceStatus.RUNNING, InstanceStatus.CRASHED) == (InstanceStatus.CRASHED,)
    assert statuses.shortest_path(InstanceStatus.RUNNING, InstanceStatus.RUNNING) == (InstanceStatus.RUNNING,)
    assert statuses.shortest_path(InstanceStatus.RUNNING, InstanceStatus.STOPPED) == (
        InstanceStatus.STOPPING,
        InstanceStatus.STOPPED,
    )
    assert statuses.shortest_path(InstanceStatus.STOPPING, InstanceStatus.RUNNING) == (
        InstanceStatus.STOPPED,
        InstanceStatus.STARTING,
        InstanceStatus.RUNNING,
    )


def test_there_is_no_way_back_from_the_end_nor_from_what_is_to_go() -> None:
    with pytest.raises(errors.FailedPrecondition, match="final"):
        statuses.shortest_path(InstanceStatus.FAILED, InstanceStatus.STARTING)
    with pytest.raises(errors.FailedPrecondition, match="cannot become"):
        statuses.shortest_path(InstanceStatus.DESTROYING, InstanceStatus.RUNNING)
