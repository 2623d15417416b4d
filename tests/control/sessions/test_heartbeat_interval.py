"""Heartbeats are as frequent as the settings say, until there are too many nodes for that."""

from __future__ import annotations

import pytest

from skerry.control.sessions.heartbeat_interval import HEARTBEATS_PER_S, heartbeat_interval
from skerry.model.settings import FleetSettings

USUAL = FleetSettings()


def test_a_small_cloud_has_the_interval_of_its_settings() -> None:
    assert heartbeat_interval(USUAL, 0) == USUAL.report_s
    assert heartbeat_interval(USUAL, int(USUAL.report_s * HEARTBEATS_PER_S)) == USUAL.report_s


@pytest.mark.parametrize("nodes", [500, 600, 1_000, 100_000])
def test_with_more_nodes_it_grows_and_two_still_fit_before_a_node_is_suspect(nodes: int) -> None:
    interval = heartbeat_interval(USUAL, nodes)
    assert interval > USUAL.report_s
    assert 2 * interval <= USUAL.suspect_after_s


def test_an_interval_that_is_set_longer_than_that_stays() -> None:
    assert heartbeat_interval(FleetSettings(report_s=5.0, suspect_after_s=6.0), 10_000) == 5.0
