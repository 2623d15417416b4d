"""When cron expressions are due, also where clocks are put forward and back."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from skerry.control.schedules import due_times
from skerry.model import errors

BERLIN = "Europe/Berlin"  # forward on 2026-03-29 at 2:00, back on 2026-10-25 at 3:00


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def shown(cron: str, since: float, count: int, zone: str = BERLIN) -> list[str]:
    return [due_times.display(time, zone) for time in due_times.upcoming(cron, zone, since, count)]


def test_due_times_are_those_of_the_zone() -> None:
    assert due_times.upcoming("30 3 * * *", "UTC", at("2026-11-17 03:30"), 2) == [
        at("2026-11-18 03:30"),
        at("2026-11-19 03:30"),
    ]
    assert shown("30 3 * * *", at("2026-11-17 00:00"), 1) == ["2026-11-17 03:30 CET"]


def test_a_time_that_is_skipped_in_spring_is_due_right_after_the_gap_and_once() -> None:
    since = at("2026-03-28 12:00", BERLIN)
    assert shown("30 2 * * *", since, 2) == ["2026-03-29 03:00 CEST", "2026-03-30 02:30 CEST"]
    assert shown("0,30 2 * * *", since, 2) == ["2026-03-29 03:00 CEST", "2026-03-30 02:00 CEST"]


def test_a_time_that_comes_twice_in_autumn_is_due_once() -> None:
    since = at("2026-10-24 12:00", BERLIN)
    assert shown("30 2 * * *", since, 2) == ["2026-10-25 02:30 CEST", "2026-10-26 02:30 CET"]
    # Also for who looks between the two.
    between = at("2026-10-25 02:10", BERLIN, fold=1)
    assert shown("30 2 * * *", between, 1) == ["2026-10-26 02:30 CET"]


def test_what_is_due_every_hour_is_due_in_every_hour_that_there_is() -> None:
    since = at("2026-10-25 01:30", BERLIN)
    assert shown("0 * * * *", since, 3) == [
        "2026-10-25 02:00 CEST",
        "2026-10-25 02:00 CET",
        "2026-10-25 03:00 CET",
    ]


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 4,6 *", "0 0 31 2 *"])
def test_an_expression_that_is_never_due_is_refused_with_the_reason(cron: str) -> None:
    with pytest.raises(errors.Invalid, match="never due") as refused:
        due_times.check(cron, "UTC", 0.0)
    assert refused.value.field == "cron"


@pytest.mark.parametrize(
    ("cron", "reason"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("* * * * * *", "five fields"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("a b c d e", "no cron expression"),
        ("*/0 * * * *", "bad minute"),
    ],
)
def test_what_is_no_expression_is_refused(cron: str, reason: str) -> None:
    with pytest.raises(errors.Invalid, match=reason):
        due_times.check(cron, "UTC", 0.0)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../../etc/passwd", "/etc/localtime", "\0", "x" * 5000])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(errors.Invalid, match="no time zone"):
        due_times.check("* * * * *", zone, 0.0)


def test_the_29th_of_february_is_due_some_day() -> None:
    due_times.check("0 0 29 2 *", "UTC", at("2026-11-17 00:00"))
    assert shown("0 0 29 2 *", at("2026-11-17 00:00"), 1, "UTC") == ["2028-02-29 00:00 UTC"]


def test_remembered_times_are_those_that_would_be_found_anew() -> None:
    remembered = due_times.UpcomingTimes(2)
    for time in ("2026-11-17 03:29", "2026-11-17 03:30", "2026-11-18 03:29", "2026-11-16 00:00"):
        for cron in ("30 3 * * *", "0 0 1 1 *"):
            found = due_times.upcoming(cron, BERLIN, at(time, BERLIN), 2)
            assert remembered.after(cron, BERLIN, at(time, BERLIN)) == found


def test_times_are_found_once_until_the_first_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[float] = []

    def search(cron: str, timezone: str, time: float, count: int) -> list[float]:
        searches.append(time)
        return [100.0, 200.0] if time < 100.0 else [200.0, 300.0]

    monkeypatch.setattr(due_times, "upcoming", search)
    remembered = due_times.UpcomingTimes(2)
    assert [remembered.after("* * * * *", "UTC", time)[0] for time in (10.0, 50.0, 99.9)] == [100.0] * 3
    assert remembered.after("* * * * *", "UTC", 100.0) == [200.0, 300.0]
    assert searches == [10.0, 100.0]
