"""Links: when they are up, and which endpoint is tried when."""

from __future__ import annotations

from itertools import pairwise

import pytest

from skerry.model.ids import NodeId
from skerry.node.network.mesh.links import LinkState, is_up_by_handshake
from skerry.node.network.mesh.plans import PeerStatus

N = NodeId("n")
QUIET = PeerStatus("key")


def test_a_link_is_unknown_then_up_while_answers_come_and_down_after_a_few_lost_ones() -> None:
    link = LinkState(N, since=100.0)
    assert link.is_up(101.0, 1.0) is None
    assert link.is_up(104.0, 1.0) is False
    link.answered(105.0, 0.010)
    assert link.is_up(107.0, 1.0) is True
    assert link.is_up(109.0, 1.0) is False
    assert link.is_up(109.0, 2.0) is True  # probed half as often


def test_the_round_trip_follows_slowly() -> None:
    link = LinkState(N, since=0.0)
    link.answered(1.0, 0.010)
    link.answered(2.0, 0.020)
    assert link.round_trip_ms == pytest.approx(12.0)


def test_endpoints_of_a_link_that_is_down_are_tried_in_turn_and_less_often_later() -> None:
    link = LinkState(N, since=0.0, endpoints=("a", "b"), tried_at=0.0)
    tried, now = [], 0.0
    while now < 200:
        now += 1.0
        if (endpoint := link.next_endpoint(now, QUIET, is_up=False)) is not None:
            tried.append((now, endpoint))
    assert [endpoint for _, endpoint in tried[:4]] == ["b", "a", "b", "a"]
    pauses = [later - sooner for (sooner, _), (later, _) in pairwise(tried)]
    assert pauses[0] == 3.0
    assert pauses[-1] == 15.0


def test_nothing_is_tried_while_it_is_up_or_while_something_arrives() -> None:
    link = LinkState(N, since=0.0, endpoints=("a", "b"))
    assert link.next_endpoint(10.0, QUIET, is_up=True) is None
    arriving = PeerStatus("key", received=148)
    assert link.next_endpoint(10.0, arriving, is_up=False) is None
    assert link.next_endpoint(20.0, arriving, is_up=False) == "b"


def test_new_endpoints_are_tried_soon_from_the_first_on() -> None:
    link = LinkState(N, since=0.0, endpoints=("a",), tried=40, tried_at=99.0)
    link.use(("c", "d"), 100.0)
    assert link.next_endpoint(100.5, QUIET, is_up=False) is None
    assert link.next_endpoint(101.5, QUIET, is_up=False) == "c"


def test_a_report_of_a_link_that_is_down_names_no_endpoint_and_no_round_trip() -> None:
    link = LinkState(N, since=0.0, status=PeerStatus("key", "192.0.2.1:5", 7.0, 1, 2))
    link.answered(10.0, 0.004)
    up, down = link.report(11.0, 1.0, ""), link.report(20.0, 1.0, "")
    assert (up.is_up, up.endpoint, up.round_trip_ms) == (True, "192.0.2.1:5", 4.0)
    assert (down.is_up, down.endpoint, down.round_trip_ms, down.handshake_at) == (False, "", None, 7.0)


def test_without_probes_a_handshake_counts_for_three_minutes() -> None:
    status = PeerStatus("key", handshake_at=1000.0)
    assert is_up_by_handshake(status, 1100.0)
    assert not is_up_by_handshake(status, 1200.0)
    assert not is_up_by_handshake(QUIET, 1200.0)
