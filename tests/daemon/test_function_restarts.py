"""Async calls, functions and workers across `kill -9` of a whole Skerry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.functions import begin, create, delete, groups, outcome, poll, processes, result
from tests.support.gates import WAIT, gate_of
from tests.support.remains import left_of
from tests.support.skerry import PREPARED_WORKERS, Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

CODE = WAIT + "def handler(params):\n  if 'gate' in params: wait_at(params)\n  return params\n"


def raw_poll(skerry: Skerry, id: str) -> bytes:
    connection = skerry.connect()
    try:
        connection.request("GET", f"/poll/{id}")
        return connection.getresponse().read()
    finally:
        connection.close()


def test_after_kill_9_what_had_ended_is_told_what_waited_runs_and_what_ran_is_interrupted(
    tmp_path: Path,
) -> None:
    flags = (*PREPARED_WORKERS, "--set", "functions.memory_mb=64")  # two workers, no more
    first = Skerry(tmp_path, *flags)
    try:
        first.wait_ready()
        create(first, "keep", CODE, Environment={"KEPT": "yes"})
        with gate_of(first) as gate:
            ended = begin(first, "keep", {"n": "ended"})
            assert outcome(first, ended)["State"] == "done"
            told = raw_poll(first, ended)
            ran = [begin(first, "keep", gate.params(f"ran {number}")) for number in range(2)]
            gate.wait_for("ran 0", "ran 1")
            waited = [begin(first, "keep", {"n": number}) for number in range(5)]
            assert [poll(first, id)["State"] for id in ran] == ["running"] * 2
            assert [poll(first, id)["State"] for id in waited] == ["queued"] * 5
            left = {pid for group in groups(first) for pid in processes(group)}
            assert len(left) >= 2
            first.kill()  # while both still wait at the gate
    finally:
        first.kill()
    # No worker outlives the agent, whether another one comes or not.
    eventually_sync(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
    with running(tmp_path, *flags) as second:
        assert raw_poll(second, ended) == told
        for id in ran:
            report = outcome(second, id)
            assert (report["State"], report["ErrorType"]) == ("failed", "Interrupted")
            assert "call again" in report["Error"]
        for number, id in enumerate(waited):
            report = outcome(second, id)
            assert (report["State"], json.loads(report["Result"])) == ("done", {"n": number})
        assert second.call("GET", "/poll/keep-unknown")[1]["State"] == "unknown"
        assert second.call("GET", "/function") == (200, ["keep"])
        assert second.call("GET", "/function/keep")[1]["Environment"] == ["KEPT=yes"]
        assert result(second, "keep", {"n": "again"}) == {"n": "again"}
        delete(second, "keep")
        # What is left of workers are the blank ones that wait for a function.
        eventually_sync(lambda: second.call("GET", "/status")[1]["Workers"] == 0)
    assert left_of(second) == []


def test_a_clean_stop_keeps_what_waits_and_interrupts_what_runs_too_long(tmp_path: Path) -> None:
    flags = (*PREPARED_WORKERS, "--set", "functions.memory_mb=32", "--set", "stop_timeout_s=6")
    with running(tmp_path, *flags) as first, gate_of(first) as gate:
        create(first, "keep", CODE)
        ran = begin(first, "keep", gate.params("ran"))
        gate.wait_for("ran")
        waited = begin(first, "keep", {"n": 1})
        assert first.stop() == 0
    with running(tmp_path, *flags) as second:
        assert outcome(second, ran)["ErrorType"] == "Interrupted"
        assert outcome(second, waited)["Result"] == '{"n": 1}'
    assert left_of(second) == []
