"""Gathering: all at once, each within the time, and none that fails hides the others."""

from __future__ import annotations

import threading

from skerry.cli.doctor.gathering import gather


def fail() -> None:
    raise ValueError("no such file")


def test_facts_come_by_name_and_a_failure_has_its_reason() -> None:
    gathered = gather({"good": lambda: 5, "nothing": lambda: None, "bad": fail}, 10.0)
    assert gathered.facts == {"good": 5, "nothing": None}
    assert gathered.failures == {"bad": "ValueError: no such file"}


def test_one_that_hangs_holds_up_nobody() -> None:
    release = threading.Event()
    try:
        gathered = gather({"stuck": release.wait, "good": lambda: 5}, 0.2)
        assert gathered.facts == {"good": 5}
        assert "longer than 0.2 s" in gathered.failures["stuck"]
    finally:
        release.set()


def test_they_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)
    gathered = gather(dict.fromkeys("abc", meeting.wait), 10.0)
    assert gathered.facts.keys() == set("abc")


def test_nothing_to_gather_is_no_wait() -> None:
    assert gather({}, 10.0) == ({}, {})
