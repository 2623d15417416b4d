"""A whole Skerry: starting, being ready, stopping, being killed, and letting in whom it should."""

from __future__ import annotations

import json
import os
import signal
import ssl
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.remains import groups_of
from tests.support.skerry import COMMAND, NOBODY, Skerry, environment, running, unprivileged
from tests.support.waiting import PATIENCE_S, eventually_sync

as_root = pytest.mark.root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_the_ready_file_tells_where_everything_is_and_all_of_it_serves(folder: Path) -> None:
    with running(folder) as skerry:
        ready = skerry.ready
        assert ready["pid"] == skerry.process.pid
        assert skerry.call("GET", "/healthz")[0] == 200
        assert skerry.call("GET", "/readyz") == (
            200,
            {"ready": True, "checks": {"store": "ok", "disk": "ok"}},
        )
        assert stat.S_ISSOCK(os.stat(ready["socket"]).st_mode)
        context = ssl.create_default_context(cafile=ready["ca"])
        context.load_cert_chain(ready["client_cert"], ready["client_key"])
        assert stat.S_IMODE(os.stat(ready["client_key"]).st_mode) == 0o600
        assert stat.S_IMODE(skerry.data.stat().st_mode) & 0o077 == 0
        assert json.loads((skerry.data / "ready.json").read_text()) == ready


def test_a_clean_stop_takes_its_files_with_it_and_exits_with_0(folder: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        skerry = Skerry(folder)
        ready = skerry.wait_ready()
        skerry.process.send_signal(number)
        assert skerry.process.wait(PATIENCE_S) == 0
        left = [
            path
            for path in (skerry.ready_file, skerry.data / "ready.json", Path(ready["socket"]))
            if path.exists()
        ]
        assert left == []
        assert groups_of(skerry) == []


def test_a_clean_stop_does_not_wait_for_an_open_event_stream(folder: Path) -> None:
    with (
        running(folder) as skerry,
        subprocess.Popen(
            [*COMMAND, "events", "-f"],
            env=environment(SKERRY_DATA=str(skerry.data)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as follower,
    ):
        assert follower.stdout is not None
        assert any(b"server.started" in line for line in follower.stdout), "it ended before"
        assert skerry.stop() == 0
        # The server it followed is gone, which it says.
        assert follower.wait(PATIENCE_S) == 3


def test_a_second_start_on_the_same_folder_is_refused_with_the_pid_that_holds_it(folder: Path) -> None:
    with running(folder) as skerry:
        second = subprocess.run(
            [*COMMAND, "up", "--data", str(skerry.data), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert second.returncode == 1
        assert f"in use by process {skerry.process.pid}" in second.stderr
        assert "Traceback" not in second.stderr
        assert skerry.call("GET", "/healthz")[0] == 200


def test_what_was_acknowledged_is_there_after_kill_9(folder: Path) -> None:
    made = []
    for _ in range(3):
        skerry = Skerry(folder)
        skerry.wait_ready()
        for _ in range(5):
            status, token = skerry.call("POST", "/token/", {"role": "viewer"})
            assert status == 201
            made.append(token["id"])
        skerry.kill()
    with running(folder) as skerry:
        _, listed = skerry.call("GET", "/token/")
        assert set(made) <= {token["id"] for token in listed["tokens"]}


def test_a_lone_server_leads_again_at_once_after_kill_9(folder: Path) -> None:
    flags = ("--set", "fleet.leader_lease_s=3600")
    first = Skerry(folder, *flags, role="server")
    try:
        first.wait_ready()
        eventually_sync(lambda: "leader.won" in first.said())
    finally:
        first.kill()
    with running(folder, *flags, role="server") as second:
        eventually_sync(lambda: second.said().count("leader.won") == 2)


@pytest.mark.parametrize("lines", [1, 3, 5, 7])
def test_kill_9_at_any_step_of_the_first_start_leaves_a_folder_that_starts(folder: Path, lines: int) -> None:
    """Killed after its first log line, while it makes its CA, its store, its certificates, its listeners."""
    flags = ["--data", str(folder / "data"), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    command = [*COMMAND, "up", *flags, "--socket", str(folder / "s.sock")]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as first:
        assert first.stderr is not None
        said = [first.stderr.readline() for _ in range(lines)]
        first.kill()
    assert all(said)
    with running(folder) as skerry:
        assert skerry.call("GET", "/readyz")[0] == 200


def test_a_port_that_is_taken_is_told_and_nothing_is_left(folder: Path) -> None:
    with running(folder) as skerry:
        taken = skerry.ready["http"].removeprefix("http://")
        other = folder / "other"
        other.mkdir()
        second = Skerry(other, "--http", taken)
        assert second.process.wait(PATIENCE_S) == 1
        assert f"--http: {taken} is in use" in second.said()
        assert not (other / "s.sock").exists()


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_off_loopback_nothing_is_served_without_tls(folder: Path, address: str) -> None:
    skerry = Skerry(folder, "--http", address)
    assert skerry.process.wait(PATIENCE_S) == 1
    assert "--tls" in skerry.said()
    assert "Traceback" not in skerry.said()


def test_with_tls_it_serves_everywhere_and_its_own_user_still_needs_no_token(folder: Path) -> None:
    with running(folder, "--http", "0.0.0.0:0", "--tls") as skerry:
        assert skerry.ready["http"].startswith("https://127.0.0.1:")
        done = skerry.cli("status", "-o", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["ready"] is True
        # Without the CA the certificate is not believed, and the way out is told.
        blind = skerry.cli("status", "--url", skerry.ready["http"])
        assert blind.returncode == 3
        assert "--ca" in blind.stderr


@as_root
def test_another_user_of_this_machine_needs_a_token(folder: Path) -> None:
    with running(folder) as skerry:
        token = skerry.call("POST", "/token/", {"role": "viewer"})[1]["token"]
        status = [*COMMAND, "status", "--url", skerry.ready["http"]]
        refused = subprocess.run(
            unprivileged(*status), env=environment(), capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert refused.returncode == 1
        assert "skerry token create" in refused.stderr
        let_in = subprocess.run(
            unprivileged(*status, "--token", token),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert let_in.returncode == 0, let_in.stderr
        beyond = subprocess.run(
            unprivileged(*COMMAND, "token", "list", "--url", skerry.ready["http"], "--token", token),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert beyond.returncode == 1
        assert "admin" in beyond.stderr


@as_root
def test_without_root_it_starts_and_says_what_is_missing(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("own")
    os.chown(folder, NOBODY, NOBODY)
    ready_file = folder / "ready.json"
    flags = ["--data", str(folder / "data"), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            unprivileged(*COMMAND, "up", *flags, "--ready-file", str(ready_file)),
            env=environment(HOME=str(folder)),
            stdout=log,
            stderr=log,
        )
    try:
        eventually_sync(ready_file.exists)
        ready = json.loads(ready_file.read_text())
        assert ready["socket"].startswith(str(folder))
        (sentence,) = ready["lacking"]
        assert sentence.startswith("root: ")
        status = subprocess.run(
            unprivileged(*COMMAND, "status", "--data", str(folder / "data")),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert status.returncode == 0, status.stderr
        assert "unavailable" in status.stdout
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_a_data_folder_that_cannot_be_made_is_told_plainly(folder: Path) -> None:
    (folder / "file").write_text("")
    done = subprocess.run(
        [*COMMAND, "up", "--data", str(folder / "file" / "data")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert "cannot be used" in done.stderr
    assert "Traceback" not in done.stderr


def test_two_clouds_run_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running(tmp_path / "a") as one, running(tmp_path / "b") as other:
        one.call("POST", "/token/", {"role": "viewer", "note": "one"})
        assert [t["note"] for t in one.call("GET", "/token/")[1]["tokens"]] == ["one"]
        assert other.call("GET", "/token/")[1]["tokens"] == []


def test_unknown_paths_and_verbs_of_functions_are_told_as_serverledge_tells_them(folder: Path) -> None:
    with running(folder) as skerry:
        for verb, path in (("GET", "/workflow/x"), ("POST", "/workflow/create"), ("GET", "/function/f/x")):
            status, told = skerry.call(verb, path)
            assert (status, told["message"], told["code"]) == (404, "Not Found", "not-found"), path
        for verb, path in (
            ("GET", "/create"),
            ("DELETE", "/invoke/f"),
            ("PUT", "/poll/x"),
            ("POST", "/status"),
        ):
            status, told = skerry.call(verb, path)
            assert (status, told["message"], told["code"]) == (405, "Method Not Allowed", "wrong-verb"), path
        assert skerry.call("GET", "/nothing")[1].keys() == {"error", "code", "request_id"}, "none of its own"
