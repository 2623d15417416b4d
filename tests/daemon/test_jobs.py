"""Jobs and schedules of a whole Skerry, with real containers, by the command line and across `kill -9`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import imagery
from tests.support.etcd import EtcdServer
from tests.support.functions import create
from tests.support.remains import left_of
from tests.support.shares import free_port
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

MINUTE = 60.0
QUICK = ("--set", "fleet.job_retry_base_s=0.1", "--set", "node.stop_grace_s=0.5")
# The second of three fails once.
SCRIPT = (
    "echo index $SKERRY_JOB_INDEX attempt $SKERRY_JOB_ATTEMPT; "
    "test $SKERRY_JOB_INDEX-$SKERRY_JOB_ATTEMPT != 1-0"
)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("true",))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'box.tar')}"


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skerry]:
    with running(tmp_path_factory.mktemp("jobs"), *QUICK) as one:
        yield one


def cli(skerry: Skerry, *arguments: str) -> str:
    done = skerry.cli(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def described(skerry: Skerry, noun: str, name: str) -> dict[str, Any]:
    return dict(json.loads(cli(skerry, noun, "describe", name, "-o", "json")))


def job_names(skerry: Skerry) -> list[str]:
    status, found = skerry.call("GET", "/job/")
    assert status == 200
    return [job["name"] for job in found["jobs"]]


def shown(skerry: Skerry, noun: str, name: str) -> dict[str, Any]:
    status, found = skerry.call("GET", f"/{noun}/{name}")
    assert status == 200, found
    return dict(found)


def test_a_job_runs_all_completions_tries_again_what_failed_and_keeps_the_logs_of_every_try(
    skerry: Skerry, image: str
) -> None:
    options = ("--completions", "3", "--parallelism", "2", "--retries", "2", "--wait")
    done = skerry.cli("job", "run", "--name", "sums", *options, image, "--", "sh", "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "sums"
    assert "sums: SUCCEEDED, 3/3 done, 1 failed" in done.stderr
    job = described(skerry, "job", "sums")
    assert (job["status"], job["succeeded"], job["failures"]) == ("SUCCEEDED", 3, 1)
    tries = [(each["index"], each["attempt"], each["status"]) for each in job["tries"]]
    assert sorted(tries) == [
        (0, 0, "TERMINATED"),
        (1, 0, "FAILED"),
        (1, 1, "TERMINATED"),
        (2, 0, "TERMINATED"),
    ]
    for each in job["tries"]:
        printed = cli(skerry, "job", "logs", "sums", "--try", str(each["number"]))
        assert printed == f"index {each['index']} attempt {each['attempt']}\n"
    everything = cli(skerry, "job", "logs", "sums")
    assert everything.count("index") == 4
    cli(skerry, "job", "delete", "sums")
    eventually_sync(lambda: "sums" not in job_names(skerry))
    assert skerry.call("GET", "/instance/")[1]["count"] == 0


def test_after_its_time_a_job_is_gone_with_its_tries(skerry: Skerry, image: str) -> None:
    cli(skerry, "job", "run", "--name", "short", "--keep-for", "1s", "--wait", image)
    eventually_sync(lambda: "short" not in job_names(skerry))
    assert skerry.call("GET", "/instance/")[1]["count"] == 0


def test_a_job_that_fails_stops_its_other_tries_and_says_why(skerry: Skerry, image: str) -> None:
    script = "test $SKERRY_JOB_INDEX = 0 || exit 7; sleep 1000"
    options = ("--completions", "2", "--parallelism", "2", "--retries", "0", "--wait")
    done = skerry.cli("job", "run", "--name", "bad", *options, image, "--", "sh", "-c", script)
    assert done.returncode == 1
    assert "completion 1 failed once, and is not tried again: exit code 7" in done.stderr

    def statuses() -> list[str]:
        return sorted(each["status"] for each in skerry.call("GET", "/job/bad/tries")[1]["tries"])

    eventually_sync(lambda: statuses() == ["FAILED", "STOPPED"], what="the other try is stopped")
    cli(skerry, "job", "delete", "bad")
    eventually_sync(lambda: "bad" not in job_names(skerry))


def test_a_job_that_is_cancelled_stops(skerry: Skerry, image: str) -> None:
    cli(skerry, "job", "run", "--name", "long", image, "--", "sh", "-c", "echo here; sleep 1000")
    running_try = eventually_sync(
        lambda: [
            each for each in skerry.call("GET", "/job/long/tries")[1]["tries"] if each["status"] == "RUNNING"
        ]
    )[0]
    assert cli(skerry, "job", "cancel", "long") == "long: CANCELLED\n"
    path = f"/instance/{running_try['instance_id']}"
    eventually_sync(lambda: skerry.call("GET", path)[1]["status"] == "STOPPED")
    assert cli(skerry, "job", "logs", "long") == "here\n"
    cli(skerry, "job", "delete", "long")
    eventually_sync(lambda: skerry.call("GET", path)[0] == 404)


def test_a_schedule_calls_a_function_and_follows_the_call(skerry: Skerry) -> None:
    create(skerry, "hello", "def handler(params):\n  return {'n': params['n']}\n")
    create(skerry, "broken", "def handler(params):\n  raise ValueError('no')\n")
    for function, status in (("hello", "SUCCEEDED"), ("broken", "FAILED")):
        name = f"call-{function}"
        cli(skerry, "schedule", "add", name, "0 0 1 1 *", "--fn", function, "-p", "n:=3")
        cli(skerry, "schedule", "run", name)
        (run,) = eventually_sync(
            lambda name=name: [
                run for run in shown(skerry, "schedule", name)["runs"] if run["ended_at"] is not None
            ]
        )
        assert (run["status"], run["manual"]) == (status, True), run
        cli(skerry, "schedule", "delete", name)


def next_due(seconds_ahead: float = 1.0) -> float:
    """A whole minute that begins no sooner."""
    return ((time.time() + seconds_ahead) // MINUTE + 1) * MINUTE


def test_a_server_that_is_killed_at_the_due_time_runs_it_once(tmp_path: Path, image: str) -> None:
    first = Skerry(tmp_path, *QUICK)
    try:
        first.wait_ready()
        cli(first, "schedule", "add", "tick", "* * * * *", image, "--", "true")
        cli(first, "job", "run", "--name", "other", "--wait", image)
        due_at = next_due()
        eventually_sync(lambda: time.time() >= due_at, within=2 * MINUTE)
        first.kill()
    finally:
        first.kill()
    with running(tmp_path, *QUICK) as second:
        cli(second, "schedule", "pause", "tick") if time.time() - due_at < MINUTE else None
        name = f"tick-{int(due_at)}"
        runs = eventually_sync(
            lambda: [
                run
                for run in shown(second, "schedule", "tick")["runs"]
                if run["target"] == name and run["status"] == "SUCCEEDED"
            ]
        )
        assert len(runs) == 1
        assert job_names(second).count(name) == 1
        assert shown(second, "job", name)["succeeded"] == 1
        tries = second.call("GET", f"/job/{name}/tries")[1]["tries"]
        assert len(tries) == 1
        cli(second, "job", "delete", *job_names(second))
        eventually_sync(lambda: second.call("GET", "/instance/")[1]["count"] == 0)
    assert left_of(second) == []


def test_of_two_servers_the_one_that_leads_is_killed_at_the_due_time_and_it_runs_once(
    tmp_path: Path,
) -> None:
    (tmp_path / "etcd").mkdir()
    etcd = EtcdServer(tmp_path / "etcd")
    etcd.start()
    servers: list[Skerry] = []
    try:
        for name in ("first", "second"):
            folder = tmp_path / name
            (folder / "data" / "pki").mkdir(parents=True, mode=0o700)
            if servers:
                for part in ("ca.crt", "ca.key"):
                    shutil.copy2(servers[0].data / "pki" / part, folder / "data" / "pki" / part)
            address = ("--http", f"127.0.0.1:{free_port()}", "--grpc", f"127.0.0.1:{free_port()}")
            flags = ("--store", f"etcd://{etcd.address}", "--set", "fleet.leader_lease_s=2")
            servers.append(Skerry(folder, *address, *flags, role="server"))
            servers[-1].wait_ready()
        leader, other = servers
        cli(other, "schedule", "add", "tick", "* * * * *", "example.org/box:1")
        due_at = next_due()
        eventually_sync(lambda: time.time() >= due_at, within=2 * MINUTE)
        leader.kill()
        name = f"tick-{int(due_at)}"

        def has_run() -> list[str]:
            runs = shown(other, "schedule", "tick")["runs"]
            return [run["status"] for run in runs if run["target"] == name]

        assert eventually_sync(has_run) == ["RUNNING"]
        assert job_names(other).count(name) == 1
    finally:
        for server in servers:
            server.stop()
        etcd.stop()
