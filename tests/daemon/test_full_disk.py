"""A whole Skerry whose disk is full: what it says, what can still be done, and that nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import functions, imagery
from tests.support.disks import SmallDisk, small_disk
from tests.support.remains import left_of
from tests.support.skerry import COMMAND, Skerry, environment, running
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = imagery.busybox(command=("sleep", "600"))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'box.tar')}"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path) as made:
        yield made


@pytest.fixture
def skerry(disk: SmallDisk) -> Iterator[Skerry]:
    with running(disk.root) as one:
        try:
            yield one
        finally:
            disk.empty()
            remove_all(one)


def remove_all(skerry: Skerry) -> None:
    """For tests that failed."""
    for container in json.loads(skerry.cli("container", "list", "-o", "json").stdout)["containers"]:
        skerry.cli("container", "remove", "--force", container["spec"]["name"])
    for cell in json.loads(skerry.cli("cell", "list", "-o", "json").stdout)["cells"]:
        skerry.cli("cell", "free", cell["cell"])


def cli(skerry: Skerry, *arguments: str) -> str:
    """What a verb prints, which must go well."""
    done = skerry.cli(*arguments)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def shown(skerry: Skerry, name: str) -> dict[str, Any]:
    return dict(json.loads(cli(skerry, "container", "inspect", name)))


def test_a_container_that_ends_on_a_full_disk_is_seen_to_have_ended(
    skerry: Skerry, disk: SmallDisk, archive: str
) -> None:
    cli(skerry, "container", "run", "-d", "--name", "web", archive, "sh", "-c", "sleep 600; exit 3")
    disk.fill()
    os.kill(shown(skerry, "web")["pid"], 9)
    eventually_sync(lambda: shown(skerry, "web")["state"] == "exited", what="the end is seen")
    assert shown(skerry, "web")["exit"]["signal"] == 9
    cli(skerry, "container", "remove", "web")
    disk.empty()


def readiness(skerry: Skerry) -> tuple[int, str]:
    code, told = skerry.call("GET", "/readyz")
    return code, told["checks"]["disk"]


def test_a_server_says_that_its_disk_is_full_and_recovers_by_itself(skerry: Skerry, disk: SmallDisk) -> None:
    eventually_sync(lambda: readiness(skerry) == (200, "ok"), what="it is ready")
    disk.fill()
    code, why = eventually_sync(lambda: (found := readiness(skerry))[0] == 503 and found)
    assert code == 503
    assert "is full" in why
    assert str(skerry.data) in why
    status = skerry.cli("status")
    assert status.returncode == 1
    assert "is full" in status.stdout
    node = eventually_sync(lambda: (one := the_node(skerry))["facts"]["disk_pressure"] and one)
    assert str(skerry.data) in node["facts"]["disk_pressure"]
    disk.empty()
    eventually_sync(lambda: readiness(skerry) == (200, "ok"), what="it is ready again")
    eventually_sync(lambda: not the_node(skerry)["facts"]["disk_pressure"])


def the_node(skerry: Skerry) -> dict[str, Any]:
    code, told = skerry.call("GET", "/node/")
    assert code == 200
    return dict(told["nodes"][0])


def test_instances_are_stopped_and_deleted_on_a_full_disk_and_nothing_new_is_taken(
    skerry: Skerry, disk: SmallDisk, archive: str
) -> None:
    for name in ("one", "two", "three"):
        cli(skerry, "run", "--name", name, "--restart", "never", archive)
    disk.fill()
    cli(skerry, "stop", "one")
    assert status_of(skerry, "one") == "STOPPED"
    cli(skerry, "delete", "instance", "two")
    refused = skerry.cli("run", "-d", "--name", "four", archive)
    assert refused.returncode == 1
    assert "is full" in refused.stderr
    os.kill(main_process(skerry, "three"), 9)
    eventually_sync(lambda: status_of(skerry, "three") in ("CRASHED", "FAILED"), what="its end is known")
    cli(skerry, "delete", "instance", "one", "three")
    disk.empty()
    eventually_sync(lambda: readiness(skerry) == (200, "ok"))
    cli(skerry, "run", "--name", "four", archive)
    cli(skerry, "delete", "instance", "four")


def test_changes_do_not_use_up_the_space_that_stops_and_deletions_need(
    skerry: Skerry, disk: SmallDisk, archive: str
) -> None:
    cli(skerry, "run", "--name", "one", "--restart", "never", archive)
    made = {"name": "web", "uri": "registry.example/web:1", "resources": {"cpu": 50, "memory": 32}}
    workload = skerry.call("PUT", "/workload/", made)[1]["id"]
    instances = skerry.call("GET", "/instance/")[1]["instances"]
    instance = next(each["id"] for each in instances if each["name"] == "one")
    disk.fill()
    cli(skerry, "stop", "one")  # by which it is known at once that the disk is full
    eventually_sync(lambda: readiness(skerry)[0] == 503)
    held = (skerry.data / "reserve").stat().st_size
    for number in range(20):
        more = {"environment": [f"A{each}={number}{'x' * 20_000}" for each in range(10)]}
        for path, body in (
            (f"/workload/{workload}", more),
            (f"/instance/{instance}", more),
            (f"/instance/{instance}", {"status": "RUNNING"}),
        ):
            code, told = skerry.call("PATCH", path, body)
            assert (code, "is full" in told["error"]) == (503, True), (path, told)
    assert (skerry.data / "reserve").stat().st_size > held - (4 << 20)
    assert skerry.call("PATCH", f"/instance/{instance}", {"status": "STOPPED"})[0] == 200
    assert skerry.call("DELETE", f"/workload/{workload}")[0] == 200
    cli(skerry, "delete", "instance", "one")
    disk.empty()


def status_of(skerry: Skerry, name: str) -> str:
    listed = json.loads(cli(skerry, "get", "instances", "-o", "json"))
    return str(next(each["status"] for each in listed["instances"] if each["name"] == name))


def main_process(skerry: Skerry, instance: str) -> int:
    """The process that the node sees of an instance."""
    listed = json.loads(cli(skerry, "get", "instances", "-o", "json"))
    id = next(each["id"] for each in listed["instances"] if each["name"] == instance)
    containers = json.loads(cli(skerry, "container", "list", "-o", "json"))["containers"]
    return int(next(each["pid"] for each in containers if id in each["spec"]["name"]))


def test_an_agent_that_is_killed_on_a_full_disk_is_followed_by_one_that_knows_every_end(
    disk: SmallDisk, archive: str
) -> None:
    skerry = Skerry(disk.root)
    try:
        skerry.wait_ready()
        cli(skerry, "cell", "allocate", "plain")
        cli(skerry, "cell", "start", "plain", "job", "-c", "sleep 600")
        cli(skerry, "container", "run", "-d", "--name", "early", archive, "sh", "-c", "sleep 600; exit 3")
        cli(skerry, "container", "run", "-d", "--name", "late", archive, "sh", "-c", "sleep 600; exit 3")
        early, late = (shown(skerry, name)["pid"] for name in ("early", "late"))
        disk.fill()
        os.kill(early, 9)  # the agent hears of this one
        eventually_sync(lambda: shown(skerry, "early")["state"] == "exited")
        skerry.kill()
        disk.fill()  # also what it had in reserve and gave up
        os.kill(late, 9)  # and only the init of this one
        skerry = Skerry(disk.root)
        skerry.wait_ready()
        assert shown(skerry, "early")["exit"]["signal"] == 9
        eventually_sync(lambda: shown(skerry, "late")["state"] == "exited", what="the end is seen")
        assert shown(skerry, "late")["exit"]["signal"] == 9
        cli(skerry, "cell", "stop", "plain", "job")
        cli(skerry, "cell", "free", "plain")
        cli(skerry, "container", "remove", "early")
        cli(skerry, "container", "remove", "late")
        disk.empty()
        assert skerry.stop() == 0, skerry.said()
        assert left_of(skerry) == []
    finally:
        disk.empty()
        if skerry.process.poll() is None:
            remove_all(skerry)
            skerry.stop()


@pytest.mark.parametrize("role", ["up", "server", "node"])
def test_a_start_on_a_full_disk_says_what_is_full_and_what_is_needed_and_makes_nothing(
    disk: SmallDisk, tmp_path: Path, role: str
) -> None:
    disk.fill()
    before = set(disk.root.iterdir())
    join = ("--join", "http://127.0.0.1:9") if role == "node" else ()
    done = subprocess.run(
        [*COMMAND, role, "--data", str(disk.root / "data"), "--socket", str(tmp_path / "s.sock"), *join],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"the disk of {disk.root / 'data'} is full" in done.stderr
    assert "needs 8 MB to start" in done.stderr
    assert set(disk.root.iterdir()) == before


def test_a_server_starts_again_on_a_disk_that_is_full_but_for_its_reserve(disk: SmallDisk) -> None:
    with running(disk.root, role="server") as skerry:
        eventually_sync(lambda: readiness(skerry) == (200, "ok"), what="there is a reserve")
    disk.fill()
    with running(disk.root, role="server") as skerry:
        assert readiness(skerry)[0] == 503
        assert skerry.call("PUT", "/instance/", {"uri": "registry.example/x"})[0] == 503
        disk.empty()
        eventually_sync(lambda: readiness(skerry) == (200, "ok"), what="it is ready again")


def test_an_async_call_ends_on_a_full_disk_and_its_result_is_kept(skerry: Skerry, disk: SmallDisk) -> None:
    code = "import time\ndef handler(params): print('begun', flush=True); time.sleep(3); return 'x' * 50000\n"
    functions.create(skerry, "slow", code)
    status, told = skerry.call("POST", "/invoke/slow", {"Params": {}, "Async": True})
    assert status == 200, told
    eventually_sync(lambda: readiness(skerry) == (200, "ok"), what="there is a reserve")
    eventually_sync(lambda: "begun" in skerry.cli("fn", "logs", "slow").stdout, what="it runs")
    disk.fill()

    assert "x" * 50000 in functions.outcome(skerry, told["ReqId"])["Result"]
    eventually_sync(lambda: skerry.call("POST", "/invoke/slow", {"Params": {}, "Async": True})[0] == 503)
    assert skerry.call("POST", "/delete", {"Name": "slow"})[0] == 200
