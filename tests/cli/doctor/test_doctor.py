"""`skerry doctor` on this machine: with a server, without one, as another user, and in JSON."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from skerry.cli.commands import doctor
from skerry.cli.doctor import machine_checks, machine_facts, server_facts
from skerry.cli.doctor.facts import EtcdFacts
from skerry.cli.doctor.findings import FindingStatus, ok, warning
from skerry.client import discovery
from skerry.client.discovery import TargetOptions
from skerry.kit.files import FolderLock
from skerry.kit.folder_keys import folder_key
from skerry.model.settings import GrpcSettings, HttpSettings, Settings, StoreSettings
from tests.support import fake_servers
from tests.support.certificates import TestAuthority
from tests.support.fake_servers import skerry
from tests.support.skerry import COMMAND, environment, unprivileged


def diagnose(*arguments: str, code: int | None = None) -> dict[str, list[dict[str, Any]]]:
    """The findings by area."""
    result = skerry("doctor", "--json", *arguments)
    assert result.exit_code in ((0, 1) if code is None else (code,)), result.output
    document = json.loads(result.stdout)
    assert (result.exit_code == 1) is (document["counts"]["problem"] > 0)
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in document["findings"]:
        found.setdefault(finding["area"], []).append(finding)
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def ports() -> tuple[str, ...]:
    http, grpc = free_port(), free_port()
    return "--set", f"http.listen=127.0.0.1:{http}", "--set", f"grpc.listen=127.0.0.1:{grpc}"


def test_without_a_skerry_the_machine_is_checked_all_the_same(tmp_path: Path) -> None:
    found = diagnose("--data", str(tmp_path / "none"), *ports())
    assert found["skerry"][0]["fix"] == "skerry up"
    of_root = {"cgroups"} if os.geteuid() == 0 else set()
    assert of_root | {"kernel", "programs", "runtime", "ports", "disk", "clock", "leftovers"} <= found.keys()
    assert [one["status"] for one in found["ports"]] == ["ok", "ok"]


def test_a_taken_port_is_a_problem_and_the_exit_code_is_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = f"127.0.0.1:{listener.getsockname()[1]}"
        found = diagnose("--data", str(tmp_path / "none"), *ports(), "--set", f"http.listen={taken}", code=1)
    wrong = [one for one in found["ports"] if one["status"] == "problem"]
    assert [taken in one["message"] for one in wrong] == [True]
    assert f"(pid {os.getpid()})" in wrong[0]["message"]


def test_people_get_lines_and_fixes_and_with_quiet_only_what_is_wrong(tmp_path: Path) -> None:
    arguments = ("doctor", "--data", str(tmp_path / "none"), *ports())
    every, wrong = skerry(*arguments).stdout, skerry(*arguments, "-q").stdout
    assert "fix: skerry up" in every
    assert any(line.startswith("ok ") for line in every.splitlines())
    assert not any(line.startswith("ok ") for line in wrong.splitlines())
    assert every.splitlines()[-1] == wrong.splitlines()[-1]


def test_what_a_server_answers_is_checked() -> None:
    with fake_servers.on_tcp() as fake:
        about = {"version": "1", "store": "sqlite", "lacking": [], "warnings": [], "unreachable": []}
        lost = {
            "name": "edge-1",
            "liveness": "lost",
            "reason": "silent",
            "facts": {"disk_pressure": "", "warnings": []},
        }
        fake.answer("GET /readyz", {"ready": False, "checks": {"store": "etcd is away"}}, status=503)
        fake.answer("GET /about", about)
        fake.answer("GET /node", {"nodes": [lost]})
        fake.answer("GET /mesh", {"encryption": "wireguard", "pairs": [], "absent": ["edge-1"]})
        fake.answer("GET /market/peers", {"peers": []})
        fake.answer("GET /route", {"routes": []})
        found = diagnose("--url", fake.url, code=1)
    assert "etcd is away" in found["server"][0]["message"]
    assert "edge-1 is lost" in found["nodes"][0]["message"]
    assert "edge-1 is not in the mesh" in found["mesh"][0]["message"]


def test_a_server_that_refuses_us_and_one_that_is_no_skerry_are_no_traceback() -> None:
    with fake_servers.on_tcp() as fake:
        for answer in ((403, b'{"error": "no"}'), (200, b"<html>"), (200, b"[]"), (200, b"{}")):
            fake.otherwise = answer
            assert "server" in diagnose("--url", fake.url)


def test_an_endpoint_is_dialled_and_its_certificate_read(authority: TestAuthority) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served = authority.issue("server", server=True)
    context.load_cert_chain(served.certificate, served.key)
    with fake_servers.on_tcp(context) as fake:
        target = discovery.find(TargetOptions(url=fake.url, ca=str(authority.ca)))
        port = fake.url.rpartition(":")[2]
        good = server_facts._endpoint(f"127.0.0.1:{port}", True, target)
        distrusted = server_facts._endpoint(f"127.0.0.1:{port}", True, target._replace(ca=None))
    assert {"localhost", "127.0.0.1"} <= set(good.names)
    assert good.not_after is not None
    assert (good.failure, good.tls_failure) == ("", "")
    assert "self-signed" in distrusted.tls_failure or "unable to get" in distrusted.tls_failure
    assert server_facts._endpoint("127.0.0.1:9", True, target).failure


def test_etcd_that_is_away_or_not_healthy_is_found() -> None:
    with fake_servers.on_tcp() as fake:
        address = fake.url.removeprefix("http://")
        settings = Settings(store=StoreSettings(url=f"etcd://{address},127.0.0.1:9"))
        fake.answer("GET /health", {"health": "true"})
        good, away = server_facts.etcd(settings)
        fake.answer("GET /health", {"health": "false", "reason": "NOSPACE"}, status=503)
        sick, _ = server_facts.etcd(settings)
    assert good == EtcdFacts(address)
    assert "does not answer" in away.failure
    assert "NOSPACE" in sick.failure
    assert server_facts.etcd(Settings()) == []


def test_the_clock_of_this_machine_is_not_compared_with_itself() -> None:
    with fake_servers.on_tcp() as fake:
        assert server_facts.clock_offset("here", fake.url) is None
        assert fake.asked == []


def test_a_folder_that_is_locked_belongs_to_a_skerry_that_runs(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.acquire()
    try:
        assert folder_key(tmp_path) in machine_facts.leftovers(Settings(), tmp_path).running
    finally:
        lock.release()
    assert folder_key(tmp_path) not in machine_facts.leftovers(Settings(), tmp_path).running


@pytest.mark.root
def test_a_link_and_a_cgroup_of_no_skerry_are_found_with_the_commands_that_remove_them(
    tmp_path: Path,
) -> None:
    key = folder_key(tmp_path / "gone")
    subprocess.run(["ip", "link", "add", f"sk-{key}", "type", "bridge"], check=True)
    try:
        found = diagnose("--data", str(tmp_path / "none"), *ports())
        (ours,) = [one for one in found["leftovers"] if key in one["message"]]
        assert ours["status"] == "warning"
        for command in ours["fix"].split("; "):
            subprocess.run(command, shell=True, check=True)
        again = diagnose("--data", str(tmp_path / "none"), *ports())
        assert not [one for one in again["leftovers"] if key in one["message"]]
    finally:
        subprocess.run(["ip", "link", "delete", f"sk-{key}"], check=False, capture_output=True)


def test_a_file_of_contexts_that_is_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "skerry" / "contexts.json"
    file.parent.mkdir()
    file.write_text("{")
    (finding,) = machine_checks.check_contexts(machine_facts.context_file())
    assert (finding.status, finding.fix) == (FindingStatus.PROBLEM, f"rm {file}")


def test_a_port_that_a_connection_has_is_of_its_process() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        http = HttpSettings(listen=f"127.0.0.1:{connection.getsockname()[1]}")
        settings = Settings(http=http, grpc=GrpcSettings(listen="127.0.0.1:0"))
        (facts,) = machine_facts.ports(settings, Path("/nowhere"))
    assert f"(pid {os.getpid()})" in facts.holder


def test_many_leftovers_do_not_fill_the_screen() -> None:
    findings = [warning("leftovers", f"left {number}") for number in range(9)]
    shown = doctor._without_many_leftovers([*findings, ok("mesh", "fine")])
    assert [each.message for each in shown[-2:]] == ["and 4 more findings like these", "fine"]
    assert len(shown) == 7


@pytest.mark.root
def test_another_user_gets_what_can_be_seen_and_the_rest_is_skipped(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "ready.json").write_text("{}")
    ended = subprocess.run(
        unprivileged(*COMMAND, "doctor", "--json", "--data", str(data), *ports()),
        env=environment(HOME="/nonexistent"),
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert ended.returncode in (0, 1), ended.stderr
    found = json.loads(ended.stdout)["findings"]
    assert {one["status"] for one in found if one["area"] == "leftovers"} == {"skipped"}
    assert [one["fix"] for one in found if one["area"] == "root"] == ["sudo skerry up"]
