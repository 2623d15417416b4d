"""Three edges and two clouds, far apart, with a server: calls that spill, peers that die, areas cut off.

Each is a process in a network namespace of its own, at the end of a cable that takes time. Every run of a
function says so to a witness: what was answered is compared with what really ran.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import functions
from tests.support.continents import SERVER, WITNESS_PORT, Continent, continent, result_of
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = pytest.mark.root

EDGES, CLOUDS = ("e1", "e2", "e3"), ("c1", "c2")
DELAYS = {"edge": 0.002, "cloud": 0.012}
# Tells the witness who runs, stays for a while, and says what it was asked.
RUNS = f"""
import socket, time

def handler(params, context):
    with socket.create_connection(({SERVER!r}, {WITNESS_PORT}), timeout=10) as witness:
        witness.sendall(params["id"].encode())
        witness.recv(10)
    time.sleep(params.get("s", 0))
    return params["id"]
"""
# Two of these are all that a node has memory for.
LARGE = {"MemoryMB": 64}


@pytest.fixture(scope="module")
def land(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Continent]:
    with continent(tmp_path_factory.mktemp("land"), DELAYS, edge=EDGES, cloud=CLOUDS) as made:
        for policy in ("edgeonly", "edgecloud", "cloudonly", "qosaware"):
            made.create(policy, RUNS, Policy=policy, **LARGE)
        made.create("again", RUNS, Policy="cloudonly", Idempotent=True, **LARGE)
        yield made


@pytest.fixture
def callers() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as made:
        yield made


def crowd(
    land: Continent, callers: ThreadPoolExecutor, at: str, function: str, count: int, s: float, label: str
) -> list[tuple[str, Future[tuple[int, Any]]]]:
    """So many calls at once; no other call of a run has their ids, a second try of the test included."""
    ids = [f"{function}-{label}-{secrets.token_hex(4)}-{number}" for number in range(count)]
    return [(id, callers.submit(land.invoke, at, function, {"id": id, "s": s})) for id in ids]


def answered(land: Continent, calls: list[tuple[str, Future[tuple[int, Any]]]]) -> list[dict[str, Any]]:
    """The reports, all good, each of the call that was asked, which ran once."""
    reports = []
    for id, call in calls:
        status, report = call.result(PATIENCE_S)
        assert status == 200, report
        assert result_of(report) == id
        assert land.witness.runs[id] == 1
        reports.append(report)
    return reports


def counted(land: Continent, at: str = "") -> dict[str, Any]:
    """What the server, or a node, says of all calls in the cloud."""
    status, counts = (land.nodes[at] if at else land.server).call("GET", "/function-calls")
    assert status == 200, counts
    return counts | {"Functions": {each["Name"]: each for each in counts["Functions"]}}


def test_a_call_runs_wherever_it_arrives_and_the_server_passes_it_on(land: Continent) -> None:
    for number, name in enumerate((*EDGES, *CLOUDS)):
        status, report = land.invoke(name, "edgecloud", {"id": f"here-{number}"})
        assert (status, report["ExecutionNode"], report["SchedAction"]) == (200, name, ""), report
    status, report = functions.invoke(land.server, "edgecloud", {"id": "passed on"})
    assert status == 200, report
    assert report["SchedAction"] == "O"
    assert report["ExecutionNode"] in (*EDGES, *CLOUDS)
    assert report["OffloadLatency"] > 0
    # The server runs none of them, and yet knows of all.
    counts = eventually_sync(lambda: (found := counted(land))["Members"] == 6 and found)
    assert counts["Missing"] == []
    calls = counts["Functions"]["edgecloud"]
    assert (calls["Calls"], calls["Failed"]) == (6, 0)
    assert calls["ColdStarts"] >= 5
    assert calls["RunSeconds"] > 0


@pytest.mark.parametrize(
    ("policy", "areas"),
    [
        ("edgeonly", [{"edge"}]),
        ("edgecloud", [{"edge", "cloud"}]),
        ("cloudonly", [{"cloud"}]),
        ("qosaware", [{"edge"}, {"cloud"}, {"edge", "cloud"}]),  # it knows nothing of this function yet
    ],
)
def test_an_edge_that_is_full_has_others_help_as_its_policy_says(
    land: Continent, callers: ThreadPoolExecutor, policy: str, areas: list[set[str]]
) -> None:
    reports = answered(land, crowd(land, callers, "e1", policy, 6, 1.0, "crowd"))
    assert {report["ExecutionArea"] for report in reports} in areas
    nodes = {report["ExecutionNode"] for report in reports}
    assert nodes - {"e1"}, "nobody helped"
    if policy.startswith("edge"):
        assert "e1" in nodes
    away = [report for report in reports if report["ExecutionNode"] != "e1"]
    assert all(report["SchedAction"] == "O" and report["OffloadLatency"] > 0 for report in away)


def test_coordinates_tell_near_from_far(land: Continent) -> None:
    def seen(*names: str) -> list[float]:
        """How far they are; a busy machine makes some seem farther for a while, and none nearer."""
        return [land.neighbours_of("e1")[name]["RTT"] for name in names]

    eventually_sync(lambda: max(seen("e2", "e3")) < min(seen(*CLOUDS)))
    assert min(seen("e2")) >= 4 * DELAYS["edge"] * 0.9
    assert min(seen(*CLOUDS)) >= 2 * (DELAYS["edge"] + DELAYS["cloud"]) * 0.9
    coordinates = land.nodes["e1"].call("GET", "/status")[1]["Coordinates"]
    assert coordinates["Vec"] != [0, 0, 0]
    assert coordinates["Error"] < 1.5


@pytest.fixture(scope="module")
def killed(land: Continent) -> dict[str, Any]:
    """What became of calls in the middle of which the node that ran them was killed, by function."""
    found = {}
    with ThreadPoolExecutor(4) as callers:
        for function in ("cloudonly", "again"):
            ((id, call),) = crowd(land, callers, "e1", function, 1, 8.0, "killed")
            eventually_sync(lambda id=id: land.witness.runs[id] == 1)
            busy = eventually_sync(lambda: _busy(land))
            land.nodes[busy].kill()
            found[function] = (busy, *call.result(PATIENCE_S), land.witness.runs[id])
            land.start_again(busy)
            land.until_all_know_each_other()
    return found


def _busy(land: Continent) -> str | None:
    """The cloud node that runs a call."""
    for name in CLOUDS:
        status = land.nodes[name].call("GET", "/status")[1]
        if status["AvailableMemory"] < status["TotalMemory"]:
            return name
    return None


def test_a_call_whose_node_dies_is_not_run_again_unless_it_may_be(killed: dict[str, Any]) -> None:
    _, status, report, runs = killed["cloudonly"]
    assert (status, report["Success"], runs) == (500, False, 1)
    assert report["ErrorType"] == "Interrupted", report
    died, status, report, runs = killed["again"]
    assert (status, runs) == (200, 2), report
    assert report["ExecutionNode"] != died


@pytest.fixture(scope="module")
def alone(land: Continent) -> dict[str, Any]:
    """What edges did while the server was gone, for more than twice the time after which a node is lost, and
    what became of their async calls."""
    land.server.kill()
    back_at = time.monotonic() + 20
    began = {name: functions.begin(land.nodes[name], "cloudonly", {"id": f"async-{name}"}) for name in EDGES}
    with ThreadPoolExecutor(16) as callers:
        reports = answered(land, crowd(land, callers, "e2", "edgeonly", 6, 1.0, "alone"))
    # Asked of anybody, whoever took it in.
    polled = {name: functions.outcome(land.nodes["e3"], id) for name, id in began.items()}
    # One that starts again has only itself, what is on its disk, and its neighbours.
    land.nodes["e3"].kill()
    land.start_again("e3")
    land.until_all_know_each_other()
    restarted = land.invoke("e3", "cloudonly", {"id": "after a restart"})
    kept = functions.outcome(land.nodes["e1"], began["e3"])
    served = 0
    with ThreadPoolExecutor(8) as callers:
        while time.monotonic() < back_at:
            calls = [
                call
                for at in EDGES
                for call in crowd(land, callers, at, "edgeonly", 2, 1.0, f"{at}-{served}")
            ]
            served += len(answered(land, calls))
    land.start_server_again()
    eventually_sync(lambda: functions.invoke(land.server, "edgecloud", {"id": "back"})[0] == 200)
    at_server = {name: functions.outcome(land.server, id) for name, id in began.items()}
    return {
        "reports": reports,
        "polled": polled,
        "restarted": restarted,
        "kept": kept,
        "at_server": at_server,
    }


def test_edges_serve_and_help_each_other_while_the_server_is_gone(alone: dict[str, Any]) -> None:
    assert len({report["ExecutionNode"] for report in alone["reports"]}) > 1
    for name in EDGES:
        assert result_of(alone["polled"][name]) == f"async-{name}"
        assert alone["polled"][name]["ExecutionArea"] == "cloud"
        assert alone["at_server"][name]["Result"] == alone["polled"][name]["Result"]
    status, report = alone["restarted"]
    assert (status, report["ExecutionArea"]) == (200, "cloud"), report
    assert alone["kept"]["Result"] == alone["polled"]["e3"]["Result"]


def test_an_area_that_is_cut_off_goes_on_by_itself_and_comes_back(
    land: Continent, callers: ThreadPoolExecutor
) -> None:
    land.cut(*CLOUDS)
    try:
        # Whoever is dead is asked for in vain once.
        reports = answered(land, crowd(land, callers, "e1", "edgecloud", 3, 0.1, "cut off"))
        assert {report["ExecutionArea"] for report in reports} == {"edge"}
        eventually_sync(lambda: not any(land.neighbours_of("e1")[name]["Up"] for name in CLOUDS))
        reports = answered(land, crowd(land, callers, "e1", "cloudonly", 2, 0.0, "cut off"))
        assert {report["ExecutionNode"] for report in reports} == {"e1"}
        status, report = land.invoke("e1", "edgeonly", {"id": "still here"})
        assert (status, report["ExecutionNode"]) == (200, "e1")
    finally:
        land.mend(*CLOUDS)
    land.until_all_know_each_other()
    reports = answered(land, crowd(land, callers, "e1", "cloudonly", 2, 0.0, "back"))
    assert {report["ExecutionArea"] for report in reports} == {"cloud"}
