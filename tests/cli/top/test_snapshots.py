"""Snapshots: counters of functions become rates, and what a caller may not see is left out."""

from __future__ import annotations

from skerry.cli.top import snapshots
from skerry.cli.top.snapshots import CallCounters, FunctionCounters, FunctionUsage
from skerry.client.api import ApiClient
from skerry.client.discovery import ServerTarget
from tests.support import fake_servers

COUNTED = {
    "Time": 1000.0,
    "Members": 2,
    "Missing": ["edge-2: it does not answer"],
    "Functions": [
        {
            "Name": "hello",
            "Namespace": "shop",
            "Calls": 9,
            "Failed": 2,
            "ColdStarts": 1,
            "RunSeconds": 0.5,
        }
    ],
}


def counters(at: float, **functions: FunctionCounters) -> CallCounters:
    return CallCounters(at, functions)


def test_the_counters_of_the_cloud_are_read() -> None:
    found = snapshots.parse_counters(COUNTED)
    assert found.functions == {"shop:hello": FunctionCounters(9, 2, 1, 0.5)}
    assert found.missing == ("edge-2: it does not answer",)


def test_rates_are_what_happened_between_two_readings_of_the_server() -> None:
    before = counters(10.0, hello=FunctionCounters(10, 1, 2, 1.0))
    now = counters(12.0, hello=FunctionCounters(30, 3, 2, 2.0), new=FunctionCounters(4, 0, 1, 0.2))
    hello, new = snapshots.usage(now, before)
    assert hello == FunctionUsage("hello", 30, 10.0, 1.0, 0.0, 50.0)
    assert (new.calls_per_s, new.run_ms) == (2.0, 50.0)


def test_the_first_reading_and_the_answer_of_another_server_have_no_rates() -> None:
    now = counters(12.0, hello=FunctionCounters(3))
    assert snapshots.usage(now, None) == [FunctionUsage("hello", 3)]
    more = counters(10.0, hello=FunctionCounters(100))
    assert snapshots.usage(now, more) == [FunctionUsage("hello", 3)]


def test_a_reading_that_the_server_shares_keeps_its_rates() -> None:
    with fake_servers.on_tcp() as fake:
        fake.answer("GET /about", {"version": "1"})
        for kind in ("node", "instance", "service"):
            fake.answer(f"GET /{kind}", {f"{kind}s": [], "cursor": None})
        server = ApiClient(ServerTarget(fake.url, None, None, "test"))
        snapshot = None
        for counted in (COUNTED, {**COUNTED, "Time": 1002.0}, {**COUNTED, "Time": 1002.0}):
            fake.answer("GET /function-calls", counted)
            snapshot = snapshots.read(server, "*", snapshot)
    assert snapshot is not None
    assert snapshot.functions == [FunctionUsage("shop:hello", 9, 0.0, 0.0, 0.0)]


def test_what_a_caller_may_not_see_is_left_out() -> None:
    with fake_servers.on_tcp() as fake:
        fake.otherwise = (403, b'{"error": "no"}')
        fake.answer("GET /about", {"version": "1"})
        fake.answer("GET /instance", {"instances": [{"name": "web"}], "cursor": None})
        server = ApiClient(ServerTarget(fake.url, None, None, "test"))
        found = snapshots.read(server, "*", None)
    assert found.instances == [{"name": "web"}]
    assert found.nodes is None
    assert found.functions is None
    assert found.services == []


def test_a_snapshot_costs_a_handful_of_requests() -> None:
    with fake_servers.on_tcp() as fake:
        fake.answer("GET /about", {"version": "1"})
        for kind in ("node", "instance", "service"):
            fake.answer(f"GET /{kind}", {f"{kind}s": [], "cursor": None})
        fake.answer("GET /function-calls", COUNTED)
        snapshots.read(ApiClient(ServerTarget(fake.url, None, None, "test")), "*", None)
        assert len(fake.asked) == 5
