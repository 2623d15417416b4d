"""A whole Skerry used by its command line: from `skerry run` to a page, and whatever a person does then."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import imagery
from tests.support.nodes import Command, read_until
from tests.support.pages import nobody_listens, served
from tests.support.remains import left_of
from tests.support.shares import free_port
from tests.support.skerry import Skerry, running
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = pytest.mark.root

PAGE = "a page\n"
SERVE = "trap 'exit 0' TERM; echo serving; httpd -f -p 80 -h /www & wait"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """busybox that serves a page, as a file."""
    page = imagery.layer(imagery.file("www/index.html", PAGE))
    made = imagery.busybox(page, command=("sh", "-c", SERVE))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'web.tar')}"


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skerry]:
    with running(tmp_path_factory.mktemp("cli"), "--tls") as one:
        eventually_sync(lambda: [node["liveness"] for node in shown(one, "nodes")["nodes"]] == ["live"])
        yield one
        # Containers outlive a server, and a test that failed may have left some.
        for left in shown(one, "instances")["instances"]:
            say(one, "delete", "instance", left["id"])
    assert left_of(one) == []


def say(skerry: Skerry, *arguments: str) -> str:
    """What a verb prints, which must go well."""
    done = skerry.cli(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(skerry: Skerry, *what: str) -> Any:
    return json.loads(say(skerry, "get", *what, "-o", "json"))


def test_what_is_run_is_reached_seen_spoken_to_stopped_started_and_deleted(
    skerry: Skerry, archive: str
) -> None:
    port = free_port()
    done = skerry.cli("run", "--name", "web", "-p", f"{port}:80", "-e", "WHO=me", "--memory", "64", archive)
    assert done.returncode == 0, done.stderr
    id = done.stdout.strip()
    assert f"ports {port}:80" in done.stderr.splitlines()[-1]
    assert served(port) == PAGE

    assert shown(skerry, "instance", "web")["id"] == id
    assert "running" in say(skerry, "describe", "instance", "web").partition("Events:")[2]
    eventually_sync(lambda: say(skerry, "logs", "web") == "serving\n")
    assert say(skerry, "exec", "web", "sh", "-c", "echo $WHO; cat /www/index.html") == f"me\n{PAGE}"
    assert skerry.cli("exec", "web", "sh", "-c", "exit 7").returncode == 7
    missing = skerry.cli("exec", "web", "nothing")
    assert (missing.returncode, missing.stderr.count("\n")) == (127, 1)

    assert say(skerry, "stop", "web") == "web: STOPPED\n"
    assert nobody_listens(port)
    assert say(skerry, "start", "web") == "web: RUNNING\n"
    assert served(port) == PAGE
    assert say(skerry, "delete", "instance", "web") == "deleted instance web\n"
    assert nobody_listens(port)
    assert skerry.cli("describe", "instance", "web").returncode == 1


def test_input_goes_to_a_program_in_an_instance(skerry: Skerry, archive: str) -> None:
    say(skerry, "run", "--name", "sink", archive)
    data = os.urandom(1 << 20)
    with Command(skerry, "exec", "-i", "sink", "cat", stdin=subprocess.PIPE) as process:
        output, _ = process.communicate(data, timeout=PATIENCE_S)
        assert process.returncode == 0
    assert output == data
    say(skerry, "delete", "instance", "sink")


def test_logs_are_followed_until_the_instance_is_over(skerry: Skerry, archive: str) -> None:
    script = "echo before; while [ ! -e /go ]; do sleep 0.05; done; echo after"
    say(skerry, "run", "--name", "job", "--restart", "never", archive, "--", "sh", "-c", script)
    with Command(skerry, "logs", "-f", "job") as follower:
        read_until(follower.stdout, b"before\n")
        say(skerry, "exec", "job", "touch", "/go")
        output, _ = follower.communicate(timeout=PATIENCE_S)
        assert (output, follower.returncode) == (b"after\n", 0)
    eventually_sync(lambda: shown(skerry, "instance", "job")["status"] == "TERMINATED")
    assert say(skerry, "logs", "job") == "before\nafter\n"
    say(skerry, "delete", "instance", "job")


def test_one_that_fits_nowhere_is_explained_with_numbers(skerry: Skerry, archive: str) -> None:
    say(skerry, "run", "-d", "--name", "big", "--memory", "99999999", archive)
    explained = eventually_sync(lambda: _waiting(say(skerry, "explain", "big")))
    assert "0 of 1 nodes are feasible now." in explained
    assert "MB of memory (free:" in explained
    say(skerry, "delete", "instance", "big")


def _waiting(text: str) -> str:
    return text if "1 node: lacks" in text else ""


def test_a_file_is_applied_until_it_is_so(skerry: Skerry, archive: str, tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    text = f"""
workloads:
  - name: shop
    image: {archive}
    environment: {{MODE: MODE_}}
    resources: {{memory: 32}}
instances:
  - workload: shop
    count: 2
"""
    file.write_text(text.replace("MODE_", "one"))
    assert say(skerry, "apply", "-f", str(file)).count("created") == 3

    def modes() -> list[str]:
        running = shown(skerry, "instances", "--status", "RUNNING")["instances"]
        return [skerry.cli("exec", one["id"], "sh", "-c", "echo $MODE").stdout.strip() for one in running]

    eventually_sync(lambda: shown(skerry, "instances", "--status", "RUNNING")["count"] == 2)
    assert modes() == ["one", "one"]
    assert say(skerry, "apply", "-f", str(file)).count("unchanged") == 3
    file.write_text(text.replace("MODE_", "two"))
    assert "changed workload shop (environment)" in say(skerry, "apply", "-f", str(file))

    # What is replaced is not running for a moment.
    eventually_sync(lambda: modes() == ["two", "two"], what="both with the new environment")
    assert say(skerry, "delete", "workload", "shop") == "deleted workload shop\n"
    assert shown(skerry, "instances")["count"] == 0
