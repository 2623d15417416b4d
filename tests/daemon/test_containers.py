"""Containers of a whole Skerry, used by the command line: from a file or a registry to a page on a port."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import imagery
from tests.support.folders import paths_below
from tests.support.pages import get, nobody_listens, served
from tests.support.registry import Registry
from tests.support.remains import left_of
from tests.support.shares import free_port
from tests.support.skerry import COMMAND, Skerry, environment, running
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.root

PAGE = "a page\n"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """busybox with a page to serve, as a file."""
    page = imagery.layer(imagery.file("www/index.html", PAGE))
    made = imagery.busybox(page, command=("httpd", "-f", "-p", "80", "-h", "/www"))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'web.tar')}"


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skerry]:
    with running(tmp_path_factory.mktemp("containers")) as one:
        yield one


def cli(skerry: Skerry, *arguments: str) -> str:
    """What a verb prints, which must go well."""
    done = skerry.cli(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(skerry: Skerry, name: str) -> dict[str, Any]:
    return dict(json.loads(cli(skerry, "container", "inspect", name)))


def node_of(skerry: Skerry) -> dict[str, Any]:
    """The only node, as the server knows it."""
    (node,) = json.loads(cli(skerry, "node", "list", "-o", "json"))["nodes"]
    return dict(node)


def files_of(skerry: Skerry) -> set[Path]:
    """What is kept for containers, but not their images."""
    return {*paths_below(skerry.data / "containers"), *paths_below(skerry.data / "cells")}


def test_an_image_from_a_file_is_run_with_its_output_and_exit_code(skerry: Skerry, archive: str) -> None:
    done = skerry.cli("container", "run", "--rm", archive, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.returncode) == ("out\n", 7)
    assert done.stderr.endswith("err\n")
    assert json.loads(cli(skerry, "container", "list", "-o", "json")) == {"containers": []}


def test_the_sample_image_is_made_here_and_serves_a_page(skerry: Skerry) -> None:
    reference = cli(skerry, "image", "sample").strip()
    assert reference == f"oci:{skerry.data}/sample"
    port = free_port()
    cli(skerry, "container", "run", "--detach", "--name", "sample", "-p", f"{port}:80", reference)
    assert "<h1>It works</h1>" in served(port)
    assert cli(skerry, "container", "exec", "sample", "python3", "-c", "print(6 * 7)") == "42\n"
    cli(skerry, "container", "stop", "sample")
    assert shown(skerry, "sample").get("exit_code", 0) == 0, "it was killed"  # 0 is left out
    cli(skerry, "container", "remove", "sample")
    cli(skerry, "image", "remove", reference)


def test_an_image_from_a_registry_is_pulled_listed_run_and_removed(skerry: Skerry, tmp_path: Path) -> None:
    with Registry(tmp_path / "registry") as registry:
        made = imagery.busybox(command=("echo", "from the registry"))
        registry.push(made, "greeter:1")
        name = f"{registry.address}/greeter:1"
        assert cli(skerry, "image", "pull", "--quiet", name).strip() == made.id
        missing = skerry.cli("image", "pull", "--quiet", f"{registry.address}/nothing:1")
        assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert name in cli(skerry, "image", "list")
    # The registry is gone: what is here is enough.
    assert cli(skerry, "container", "run", "--rm", name) == "from the registry\n"
    cli(skerry, "container", "create", "--name", "user", name)
    refused = skerry.cli("image", "remove", name)
    assert refused.returncode == 1
    assert "user" in refused.stderr
    cli(skerry, "container", "remove", "user")
    cli(skerry, "image", "remove", name)
    assert name not in cli(skerry, "image", "list")


def test_a_published_port_leads_into_the_container_until_it_stops(skerry: Skerry, archive: str) -> None:
    port = free_port()
    options = ("--name", "web", "-p", f"{port}:80", "--stop-grace", "0")
    assert cli(skerry, "container", "run", "-d", *options, archive) == "web\n"
    assert served(port) == PAGE
    taken = skerry.cli("container", "run", "-d", "--name", "other", "-p", f"{port}:80", archive)
    assert taken.returncode == 125
    assert "web" in taken.stderr
    assert str(port) in taken.stderr
    assert "other" not in cli(skerry, "container", "list")
    assert cli(skerry, "container", "stop", "web").startswith("stopped web: exited")
    assert nobody_listens(port)
    cli(skerry, "container", "start", "web")
    assert served(port) == PAGE
    cli(skerry, "container", "remove", "--force", "web")
    assert nobody_listens(port)


def test_the_cell_of_a_container_is_no_clients_to_start_stop_or_free(skerry: Skerry, archive: str) -> None:
    cli(skerry, "container", "run", "-d", "--name", "mine", "--stop-grace", "0", archive, "sleep", "600")
    for verb in (
        ("start", "@mine", "x", "-c", "id"),
        ("stop", "@mine", "main"),
        ("free", "@mine"),
        ("allocate", "@mine/inside"),
        ("allocate", "@other"),
    ):
        refused = skerry.cli("cell", *verb)
        assert (refused.returncode, "begins with '@'" in refused.stderr) == (1, True), refused.stderr
    assert "@mine" in cli(skerry, "cell", "list")
    assert "@mine" in cli(skerry, "cell", "list", "@mine")
    cli(skerry, "cell", "allocate", "mine")  # a cell of a client is in no container's way
    cli(skerry, "cell", "free", "mine")
    assert shown(skerry, "mine")["state"] == "running"
    cli(skerry, "container", "remove", "--force", "mine")


def test_exec_passes_input_output_and_exit_code(skerry: Skerry, archive: str) -> None:
    cli(skerry, "container", "run", "-d", "--name", "box", "--stop-grace", "0", archive, "sleep", "600")
    data = os.urandom(200_000)
    for script, code in (("cat", 0), ("cat; exit 9", 9)):
        done = subprocess.run(
            [*COMMAND, "container", "exec", "-i", "-e", "A=1", "box", "sh", "-c", script],
            input=data,
            capture_output=True,
            env=environment(SKERRY_DATA=str(skerry.data)),
            timeout=PATIENCE_S,
        )
        assert (done.stdout == data, done.returncode) == (True, code), done.stderr
    assert skerry.cli("container", "exec", "box", "nothing-here").returncode == 127
    assert skerry.cli("container", "exec", "box", "/etc/passwd").returncode == 126
    asked = skerry.cli("container", "exec", "-t", "--user", "user", "box", "sh", "-c", "tty; id -u; pwd")
    terminal, user, folder = asked.stdout.split()
    assert (terminal.startswith("/dev/"), user, folder) == (True, "1000", "/")
    cli(skerry, "container", "remove", "--force", "box")


@pytest.mark.parametrize(("program", "code"), [("nothing-here", 127), ("/etc/passwd", 126)])
def test_a_program_that_cannot_be_run_has_the_exit_code_of_a_shell(
    skerry: Skerry, archive: str, program: str, code: int
) -> None:
    done = skerry.cli("container", "run", "--pull", "missing", archive, program)
    assert done.returncode == code, done.stderr
    assert program in done.stderr
    assert json.loads(cli(skerry, "container", "list", "-o", "json")) == {"containers": []}


def test_too_much_memory_is_told_from_a_signal(skerry: Skerry, archive: str) -> None:
    hog = "x=a; while :; do x=$x$x; done"
    done = skerry.cli("container", "run", "--rm", "--memory", "16", archive, "sh", "-c", hog)
    assert done.returncode == 128 + signal.SIGKILL
    assert "memory" in done.stderr


def test_ctrl_c_stops_the_container_as_it_likes_to_be_stopped(skerry: Skerry, archive: str) -> None:
    script = "trap 'echo bye; exit 5' USR1; echo on; while :; do sleep 0.05; done"
    command = ["container", "run", "--rm", "--stop-signal", "SIGUSR1", archive, "sh", "-c", script]
    with subprocess.Popen(
        [*COMMAND, *command],
        env=environment(SKERRY_DATA=str(skerry.data)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert (output, process.returncode) == (b"bye\n", 5)


def test_a_container_goes_on_when_skerry_is_killed_and_nothing_is_left_at_the_end(
    tmp_path: Path, archive: str
) -> None:
    port = free_port()
    first = Skerry(tmp_path)
    try:
        first.wait_ready()
        cli(first, "container", "run", "--rm", archive, "true")  # what all share is made by the first
        files = files_of(first)
        options = ("--name", "web", "-p", f"{port}:80", "--stop-grace", "0")
        cli(first, "container", "run", "-d", *options, archive)
        script = "echo before; while [ ! -e /go ]; do sleep 0.05; done; echo after; exit 3"
        cli(first, "container", "run", "-d", "--name", "job", archive, "sh", "-c", script)
        assert served(port) == PAGE
        before = shown(first, "web")
    finally:
        first.kill()
    assert get(port) == PAGE
    with running(tmp_path) as second:
        after = shown(second, "web")
        assert (after["state"], after["pid"], after["address"]) == (
            "running",
            before["pid"],
            before["address"],
        )
        assert get(port) == PAGE
        with subprocess.Popen(
            [*COMMAND, "container", "logs", "-f", "job"],
            env=environment(SKERRY_DATA=str(second.data)),
            stdout=subprocess.PIPE,
        ) as follower:
            cli(second, "container", "exec", "job", "touch", "/go")
            output, _ = follower.communicate(timeout=PATIENCE_S)
        assert output == b"before\nafter\n"
        assert cli(second, "container", "wait", "job") == "3\n"
        cli(second, "container", "remove", "job")
        cli(second, "container", "remove", "--force", "web")
        assert nobody_listens(port)
    assert left_of(second) == []
    assert files_of(second) <= files


def test_a_node_has_user_namespaces_and_says_which_runtime_it_has(skerry: Skerry, archive: str) -> None:
    facts = node_of(skerry)["facts"]
    assert facts["userns"] is True
    assert facts["runtime"].startswith(("runc ", "crun "))
    ids = "container", "run", "--rm"
    owner = ("cat", "/proc/self/uid_map")
    assert int(cli(skerry, *ids, archive, *owner).split()[1]) > 2**30
    assert cli(skerry, *ids, "--userns", "host", archive, *owner).split()[:2] == ["0", "0"]


def test_a_node_that_cannot_have_user_namespaces_says_so(tmp_path: Path, archive: str) -> None:
    runtime = tmp_path / "runc"
    runtime.write_text(
        "#!/bin/sh\n"
        'for each in "$@"; do\n'
        '  if grep -qs uidMappings "$each/config.json"; then\n'
        "    echo 'runc run failed: this kernel has none' >&2; exit 1\n"
        "  fi\n"
        "done\n"
        f'exec {shutil.which("runc")} "$@"\n'
    )
    runtime.chmod(0o755)
    with running(tmp_path, "--set", f"node.runtime={runtime}") as skerry:
        told = "containers have no user namespaces, so root in one is root on this node"
        assert told in cli(skerry, "status")
        assert "this kernel has none" in cli(skerry, "status")
        facts = node_of(skerry)["facts"]
        assert facts["userns"] is False
        assert any(told in warning for warning in facts["warnings"])
        uids = cli(skerry, "container", "run", "--rm", archive, "cat", "/proc/self/uid_map")
        assert uids.split()[:2] == ["0", "0"]
    assert left_of(skerry) == []
