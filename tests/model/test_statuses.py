"""The state machine, pair by pair, against tables written out here on their own."""

from __future__ import annotations

import itertools

import pytest

from skerry.model import errors, statuses
from skerry.model.statuses import NodeStatus, Status

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
    assert {status.value for status in Status} == set(older.split()) | set(newer.split())


@pytest.mark.parametrize(("now", "then"), list(itertools.product(Status, Status)))
def test_every_pair_is_as_the_table_says(now: Status, then: Status) -> None:
    expected = now is then or (now.value, then.value) in ALLOWED
    assert statuses.may_become(now, then) is expected
    if expected:
        statuses.check(now, then)
    else:
        with pytest.raises(errors.Refused, match=now.value):
            statuses.check(now, then)


def test_final_is_final_and_nothing_else_is() -> None:
    assert {Status.TERMINATED, Status.FAILED} == statuses.FINAL
    assert {status for status in Status if not statuses.ALLOWED[status]} == statuses.FINAL


def test_everything_that_is_not_final_can_be_destroyed() -> None:
    for status in set(Status) - statuses.FINAL - {Status.DESTROYING}:
        assert statuses.may_become(status, Status.DESTROYING)


def test_running_is_reached_only_from_starting() -> None:
    assert [one for one in Status if Status.RUNNING in statuses.ALLOWED[one]] == [Status.STARTING]


def test_an_instance_without_room_keeps_waiting_and_cannot_fail() -> None:
    assert statuses.may_become(Status.SCHEDULING, Status.SCHEDULING)
    assert not statuses.may_become(Status.SCHEDULING, Status.FAILED)


def test_a_refusal_says_what_is_possible() -> None:
    with pytest.raises(errors.Refused, match=r"is STOPPING and cannot become RUNNING.*DESTROYING, STOPPED"):
        statuses.check(Status.STOPPING, Status.RUNNING)
    with pytest.raises(errors.Refused, match="final; create a new instance"):
        statuses.check(Status.TERMINATED, Status.RUNNING)


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
    assert {name: statuses.of_node(Status(name)) for name in expected} == expected


@pytest.mark.parametrize("status", [Status.SCHEDULING, Status.SCHEDULED, Status.DESTROYING])
def test_the_other_words_are_refused_of_nodes(status: Status) -> None:
    with pytest.raises(errors.Invalid, match=f"a node cannot be {status}"):
        statuses.of_node(status)


def test_a_way_goes_by_what_may_follow_on_a_node_and_is_the_shortest() -> None:
    assert statuses.way(Status.RUNNING, Status.CRASHED) == (Status.CRASHED,)
    assert statuses.way(Status.RUNNING, Status.RUNNING) == (Status.RUNNING,)
    assert statuses.way(Status.RUNNING, Status.STOPPED) == (Status.STOPPING, Status.STOPPED)
    assert statuses.way(Status.STOPPING, Status.RUNNING) == (Status.STOPPED, Status.STARTING, Status.RUNNING)


def test_there_is_no_way_back_from_the_end_nor_from_what_is_to_go() -> None:
    with pytest.raises(errors.Refused, match="final"):
        statuses.way(Status.FAILED, Status.STARTING)
    with pytest.raises(errors.Refused, match="cannot become"):
        statuses.way(Status.DESTROYING, Status.RUNNING)
