"""Load of the demo: what counts as lost, and where a client tries again."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from skerry.demo import load
from skerry.demo.load import Load, RequestFailed, Sample, summarize
from skerry.demo.machines import Machine
from tests.support.waiting import eventually_sync


def machines(*names: str) -> dict[str, Machine]:
    """Stand-ins: requests of these tests look at nothing but which one they get."""
    return {name: cast(Machine, name) for name in names}


def test_a_summary_counts_lost_and_retried_requests() -> None:
    samples = [Sample("oslo", "oslo", number / 100, 1, "") for number in range(1, 19)]
    samples += [Sample("oslo", "turin", 1.0, 2, "refused"), Sample("oslo", "", 30.0, 9, "refused")]
    found = summarize(samples)
    assert (found.total, found.lost, found.retried) == (20, 1, 2)
    assert found.by_node == {"oslo": 18, "turin": 1}
    assert found.problems == {"refused": 2}
    assert (found.median_s, found.p95_s) == (0.10, 1.0)
    assert found.share("turin") == 0.05
    assert found.share("turin", "oslo", "cloud") == 0.95


def test_a_summary_of_nothing_is_empty() -> None:
    assert summarize([]) == load.LoadSummary(0, 0, 0, 0.0, 0.0, {}, {})
    assert summarize([]).share("oslo") == 0.0


def test_a_client_tries_the_next_site_when_its_own_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load, "_RETRY_S", 0.0)
    tried: list[Any] = []

    def attempt(machine: Machine) -> str:
        tried.append(machine)
        if machine == "oslo":
            raise RequestFailed("oslo has no power")
        return str(machine)

    clients = Load(machines("lisbon", "oslo", "turin"))
    clients.start("oslo", attempt, clients=1, pause_s=60.0)
    eventually_sync(lambda: clients.count() == 1)
    found = clients.stop()
    assert tried == ["oslo", "lisbon"]
    assert (found.total, found.lost, found.retried, found.by_node) == (1, 0, 1, {"lisbon": 1})
    assert found.problems == {"oslo has no power": 1}


def test_a_request_that_no_site_answers_in_time_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_GIVE_UP_S", -1.0)

    def attempt(machine: Machine) -> str:
        raise RequestFailed("nothing answers")

    clients = Load(machines("oslo"))
    clients.start("oslo", attempt, clients=1, pause_s=60.0)
    eventually_sync(lambda: clients.count() == 1)
    found = clients.stop()
    assert (found.total, found.lost, found.by_node) == (1, 1, {})


def test_a_load_that_stops_waits_for_requests_under_way() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def attempt(machine: Machine) -> str:
        begun.set()
        may_end.wait(10)
        return "oslo"

    clients = Load(machines("oslo"))
    clients.start("oslo", attempt, clients=1, pause_s=60.0)
    assert begun.wait(10)
    assert clients.count() == 0
    may_end.set()
    assert clients.stop().total == 1
