"""Containers of an ordinary user's `skerry up`: run, published, entered, adopted, connected, and gone."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.ordinary import OrdinarySkerry, processes_of, skerry_of
from tests.support.ordinary_users import CAN_HAVE_NAMESPACES, IDS, ordinary_user, skip_with_assigned_ids
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.skipif(not CAN_HAVE_NAMESPACES, reason="needs user namespaces of ordinary users")

_LAN = "10.99.78"
_CONNECT = """
import socket, sys
for host, port in (each.rsplit(":", 1) for each in sys.argv[1:]):
    try:
        print(host, "said", socket.create_connection((host, int(port)), 5).recv(20).decode())
    except OSError as error:
        print(host, "failed")
"""


@pytest.fixture(params=[IDS, 0], ids=["with many ids", "with one id"])
def skerry(request: pytest.FixtureRequest) -> Iterator[OrdinarySkerry]:
    if not request.param:
        skip_with_assigned_ids()
    with ordinary_user(ids=request.param) as user, skerry_of(user) as skerry:
        yield skerry


def test_a_published_container_outlives_a_killed_agent_and_a_clean_stop_leaves_nothing(
    skerry: OrdinarySkerry,
) -> None:
    skerry.start()
    port = _free_port()
    _run_sample(skerry, port)
    assert b"It works" in _page(port)
    said = skerry.cli("exec", "web", "--", "python3", "-S", "-c", "import os; print(os.getuid())")
    assert said.strip() == "0"
    assert "GET /" in skerry.cli("logs", "web")
    skerry.kill()
    assert b"It works" in _page(port)
    skerry.start()
    eventually_sync(lambda: "RUNNING" in skerry.cli("get", "instances"), what="the adopted container")
    assert b"It works" in _page(port)
    assert skerry.cli("exec", "web", "--", "python3", "-S", "-c", "print('again')").strip() == "again"
    skerry.cli("delete", "instance", "web")
    with pytest.raises(ConnectionRefusedError):
        _page(port)
    assert skerry.stop() == 0
    assert processes_of(skerry.user) == []
    assert list((skerry.data / "network").glob("attached/*")) == []
    assert list((skerry.data / "containers" / "all").iterdir()) == []


def test_a_container_that_runs_on_keeps_its_port_when_the_agent_stops(skerry: OrdinarySkerry) -> None:
    skerry.start()
    port = _free_port()
    _run_sample(skerry, port)
    assert skerry.stop() == 0
    assert b"It works" in _page(port)


def test_a_port_that_the_user_cannot_have_is_refused_with_the_reason(skerry: OrdinarySkerry) -> None:
    skerry.start()
    image = skerry.cli("image", "sample").strip()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert f"port {number}/tcp of this machine is used by" in _failed_run(skerry, image, number)
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) > 81:
        said = _failed_run(skerry, image, 81)
        assert "port 81 cannot be published" in said
        assert "net.ipv4.ip_unprivileged_port_start" in said


def test_without_tun_the_status_says_that_containers_reach_nothing_outside() -> None:
    if os.access("/dev/net/tun", os.R_OK | os.W_OK) and os.geteuid() != 0:
        pytest.skip("this user may open /dev/net/tun")
    with ordinary_user(ids=IDS) as user, skerry_of(user) as skerry:
        skerry.start()
        assert "containers reach nothing outside this machine" in skerry.cli("status")


@pytest.mark.root
def test_a_container_reaches_other_machines_and_not_the_loopback_of_its_own() -> None:
    with ordinary_user(ids=IDS, devices=["/dev/net/tun"]) as user, skerry_of(user) as skerry, _lan():
        ready = skerry.start()
        if "containers reach nothing outside" in skerry.cli("status"):
            pytest.skip("neither pasta nor slirp4netns is installed")
        _run_sample(skerry, _free_port())
        api = ready["http"].rpartition(":")[2]
        targets = (f"{_LAN}.2:80", f"127.0.0.1:{api}", f"{_LAN}.1:{api}")
        said = skerry.cli("exec", "web", "--", "python3", "-S", "-c", _CONNECT, *targets).splitlines()
        assert said == [f"{_LAN}.2 said hello", "127.0.0.1 failed", f"{_LAN}.1 failed"]
        skerry.cli("delete", "instance", "web")
        assert skerry.stop() == 0
        assert processes_of(user) == []


def _run_sample(skerry: OrdinarySkerry, port: int) -> None:
    image = skerry.cli("image", "sample").strip()
    skerry.cli("run", "--name", "web", "-p", f"{port}:80", image)
    eventually_sync(lambda: _answers(port), what="the page of the container")


def _failed_run(skerry: OrdinarySkerry, image: str, port: int) -> str:
    """Why an instance with this port does not start."""
    skerry.attempt("run", "-d", "--name", f"on-{port}", "-p", f"{port}:80", image)
    reasons: list[str] = []

    def has_reason() -> bool:
        found = json.loads(skerry.cli("get", "instances", "-o", "json"))
        reasons[:] = [json.dumps(found)]
        return "port " in reasons[0] and ("published" in reasons[0] or "used by" in reasons[0])

    eventually_sync(has_reason, what="the reason")
    skerry.attempt("delete", "instance", f"on-{port}")
    return reasons[0]


def _page(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        return connection.getresponse().read()


def _answers(port: int) -> bool:
    try:
        return b"It works" in _page(port)
    except OSError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextlib.contextmanager
def _lan() -> Iterator[None]:
    """Another machine, which says hello on port 80."""
    space, link = f"skerry-far-{os.getpid()}", f"skf{os.getpid()}"
    program = (
        "import socket; server = socket.create_server(('', 80)); print(flush=True)\n"
        "while True:\n with server.accept()[0] as one: one.sendall(b'hello')"
    )
    try:
        for command in (
            f"ip netns add {space}",
            f"ip link add {link} type veth peer name eth0 netns {space}",
            f"ip addr add {_LAN}.1/24 dev {link}",
            f"ip link set {link} up",
            f"ip -n {space} addr add {_LAN}.2/24 dev eth0",
            f"ip -n {space} link set eth0 up",
        ):
            subprocess.run(command.split(), check=True, capture_output=True)
        with subprocess.Popen(
            ("ip", "netns", "exec", space, "python3", "-c", program), stdout=subprocess.PIPE
        ) as server:
            try:
                assert server.stdout is not None
                server.stdout.readline()
                yield
            finally:
                server.kill()
    finally:
        subprocess.run(("ip", "link", "delete", link), check=False, capture_output=True)
        subprocess.run(("ip", "netns", "delete", space), check=False, capture_output=True)
