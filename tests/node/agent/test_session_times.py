"""How long an agent waits for its server, and how often it reports."""

from __future__ import annotations

from msgspec.structs import replace

from skerry.model.settings import FleetSettings
from skerry.node.agent.agent import BACKOFF, welcome_timeout
from skerry.node.agent.session import report_interval
from tests.node.agent.instances.worlds import TERMS


def test_a_server_that_was_away_for_long_hears_us_before_it_could_miss_us() -> None:
    longest = max(BACKOFF.delay(failures, lambda: 1.0) for failures in range(100))
    assert longest < FleetSettings().suspect_after_s < FleetSettings().lost_after_s


def test_a_server_that_did_not_respond_gets_more_time_within_bounds() -> None:
    """Or a thousand nodes that dial it at once would all give up, for ever."""
    times = [welcome_timeout(rounds) for rounds in range(6)]
    assert times[0] < times[1] < times[2] == times[5]
    assert times[5] <= 60.0


def test_a_server_may_ask_for_messages_less_often_but_not_more_often_and_not_too_rarely() -> None:
    welcome = replace(TERMS, report_s=2.0, silence_s=6.0)
    assert report_interval(2.5, welcome) == 2.5
    assert report_interval(0.001, welcome) == 2.0
    assert report_interval(1e9, welcome) == 3.0
    assert report_interval(float("nan"), welcome) == 3.0
    assert report_interval(9.0, replace(welcome, silence_s=0.0)) == 2.0
