"""Which server a verb finds, and by which way: options, environment, ready files of servers and of nodes."""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skerry.cli import output
from tests.support import fake_servers
from tests.support.certificates import TestAuthority
from tests.support.fake_servers import FakeServer, skerry
from tests.support.nodes import Command, read_until
from tests.support.sites import CloudServer

NOWHERE = "https://127.0.0.1:9"
NO_PID = 2**22 + 1
ABOUT = {"version": "1", "started_at": 0.0, "store": "sqlite", "pid": 1, "lacking": [], "warnings": []}


class Listeners:
    """As many servers as a test needs, each on an address of its own; all answer any GET alike."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo

    def unix(self, path: Path) -> FakeServer:
        return self._serve(fake_servers.on_unix(path))

    def tcp(self, tls: ssl.SSLContext | None = None) -> FakeServer:
        return self._serve(fake_servers.on_tcp(tls))

    def _serve(self, serving: AbstractContextManager[FakeServer]) -> FakeServer:
        fake = self._undo.enter_context(serving)
        fake.otherwise = (200, json.dumps({**ABOUT, "tokens": [], "checks": {}}).encode())
        return fake


def paths(server: FakeServer) -> list[str]:
    return [path for _, path, _, _ in server.asked]


def tokens(server: FakeServer) -> list[str | None]:
    return [headers.get("Authorization") for _, _, headers, _ in server.asked]


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    with ExitStack() as undo:
        yield Listeners(undo)


def write_ready(folder: Path, **ready: Any) -> None:
    (folder / "ready.json").write_text(json.dumps({"pid": os.getpid(), **ready}))


def test_the_socket_comes_before_the_address(listeners: Listeners, tmp_path: Path) -> None:
    over_socket, over_tcp = listeners.unix(tmp_path / "s"), listeners.tcp()
    write_ready(tmp_path, http=over_tcp.url, http_socket=str(tmp_path / "s"))
    result = skerry("status", SKERRY_DATA=str(tmp_path))
    assert result.exit_code == 0
    assert over_tcp.url in result.stdout  # which is where people find it
    assert paths(over_socket) == ["/about", "/readyz"]
    assert over_socket.asked[0][2]["Host"] == "localhost"
    assert over_tcp.asked == []


def test_a_server_that_listens_elsewhere_is_reached_over_its_socket(
    listeners: Listeners, tmp_path: Path
) -> None:
    listeners.unix(tmp_path / "s")
    write_ready(tmp_path, http=NOWHERE, http_socket=str(tmp_path / "s"), ca="/nowhere/ca.crt")
    assert skerry("status", SKERRY_DATA=str(tmp_path)).exit_code == 0


@pytest.mark.parametrize("spelling", ["unix:{}", "unix://{}"])
def test_a_socket_can_be_named_like_a_url(listeners: Listeners, tmp_path: Path, spelling: str) -> None:
    listener = listeners.unix(tmp_path / "s")
    url = spelling.format(tmp_path / "s")
    assert skerry("token", "list", "--url", url, "--token", "skerry_1_x").exit_code == 0
    assert skerry("token", "list", SKERRY_URL=url).exit_code == 0
    assert tokens(listener) == ["Bearer skerry_1_x", None]


@pytest.mark.parametrize("url", ["unix:", "unix://", "unix:relative", "unix://relative"])
def test_a_socket_is_named_by_its_whole_path(url: str) -> None:
    assert skerry("status", "--url", url).exit_code == 2


def test_a_socket_deeper_than_an_address_is_long_is_reached(listeners: Listeners, tmp_path: Path) -> None:
    short, deep = tmp_path / "s", tmp_path / ("deep" * 40)
    listener = listeners.unix(short)
    deep.mkdir()
    short.rename(deep / "s")
    write_ready(tmp_path, http=NOWHERE, http_socket=str(deep / "s"))
    assert skerry("status", SKERRY_DATA=str(tmp_path)).exit_code == 0
    assert listener.asked


def test_who_cannot_open_the_socket_goes_on_over_tcp(listeners: Listeners, tmp_path: Path) -> None:
    server = listeners.tcp()
    write_ready(tmp_path, http=server.url, http_socket=str(tmp_path / "gone"))
    assert skerry("token", "list", "--token", "skerry_1_x", SKERRY_DATA=str(tmp_path)).exit_code == 0
    assert tokens(server) == ["Bearer skerry_1_x"]


def test_if_neither_answers_both_are_named(tmp_path: Path) -> None:
    write_ready(tmp_path, http=NOWHERE, http_socket=str(tmp_path / "gone"))
    result = skerry("status", SKERRY_DATA=str(tmp_path))
    assert result.exit_code == 3
    assert NOWHERE in result.stderr
    assert f"{tmp_path}/gone failed too: No such file" in result.stderr


def test_a_named_socket_that_nobody_serves_is_told(tmp_path: Path) -> None:
    result = skerry("status", "--url", f"unix:{tmp_path}/gone")
    assert result.exit_code == 3
    assert f"{tmp_path}/gone" in result.stderr


def test_programs_in_instances_are_reached_over_the_socket(cloud: CloudServer) -> None:
    cloud.say("run", "--name", "web", "example.org/web:1")
    (cloud.data / "http.sock").rename(cloud.data / "moved.sock")
    assert cloud.cli("exec", "web", "true").exit_code == 3  # nothing else leads there
    (cloud.data / "moved.sock").rename(cloud.data / "http.sock")
    cloud.cli("exec", "web", "true")
    assert [ask.arguments for ask in cloud.far.asked] == [("true",)]


# On a machine that is a node.


def test_on_a_node_the_server_is_named_and_how_to_get_a_token(tmp_path: Path) -> None:
    write_ready(tmp_path, role="node", node="n1", server="https://server.example:1323", ca="")
    result = skerry("get", "nodes", SKERRY_DATA=str(tmp_path))
    assert result.exit_code == 3
    assert "https://server.example:1323" in result.stderr
    assert "skerry token create" in result.stderr
    assert "--token" in result.stderr


def test_on_a_node_a_token_leads_to_its_server_over_tls_and_no_certificate_is_shown(
    listeners: Listeners, tmp_path: Path, authority: TestAuthority
) -> None:
    pair = authority.issue("n1", "node")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca))
    context.verify_mode = ssl.CERT_OPTIONAL
    served = authority.issue("server", server=True)
    context.load_cert_chain(served.certificate, served.key)
    server = listeners.tcp(context)
    files = {"ca": str(authority.ca), "client_cert": str(pair.certificate), "client_key": str(pair.key)}
    write_ready(tmp_path, role="node", node="n1", server=server.url, **files)
    assert skerry("status", SKERRY_DATA=str(tmp_path), SKERRY_TOKEN="skerry_1_x").exit_code == 0
    assert tokens(server) == ["Bearer skerry_1_x"] * 2
    assert not any(server.certificates)  # that of the node is for the node alone


def test_functions_are_called_on_the_node_itself_unless_a_token_is_shown(
    listeners: Listeners, tmp_path: Path
) -> None:
    node, server = listeners.tcp(), listeners.tcp()
    node.otherwise = server.otherwise = (200, b"[]")
    write_ready(tmp_path, role="node", node="n1", http=node.url, server=server.url)
    assert skerry("fn", "list", SKERRY_DATA=str(tmp_path)).exit_code == 0
    assert (len(node.asked), len(server.asked)) == (1, 0)
    assert skerry("fn", "list", "--token", "skerry_1_x", SKERRY_DATA=str(tmp_path)).exit_code == 0
    assert (len(node.asked), len(server.asked)) == (1, 1)


def test_other_verbs_never_take_a_node_for_a_server(listeners: Listeners, tmp_path: Path) -> None:
    node = listeners.tcp()
    write_ready(tmp_path, role="node", node="n1", http=node.url, server="https://server.example:1323")
    assert skerry("status", SKERRY_DATA=str(tmp_path)).exit_code == 3
    assert node.asked == []


# What is there is not what should be.


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"5",
        b"[]",
        b'"text"',
        b"{}",
        b'{"pid": null}',
        b'{"pid": "1"}',
        b'{"pid": true}',
        b'{"pid": 1e999}',
        b'{"pid": -1}',
        b'{"pid": HERE}',
        b'{"pid": HERE, "http": 5}',
        b'{"pid": HERE, "http": null, "ca": []}',
        b'{"pid": HERE, "http": ""}',
        b'{"pid": HERE, "role": "node"}',
        b'{"pid": HERE, "role": "node", "http": "http://127.0.0.1:9"}',
        b'{"pid": HERE, "role": "node", "socket": "/nowhere", "ca": "/x", "client_cert": "/x"}',
        b'{"pid": HERE, "http": "http://127.0.0.1:9", "socket": "/nowhere"}',
    ],
)
@pytest.mark.parametrize("verb", [("status",), ("cell", "list"), ("fn", "list")])
def test_a_ready_file_that_says_too_little_is_told_as_no_server(
    tmp_path: Path, data: bytes, verb: tuple[str, ...]
) -> None:
    (tmp_path / "ready.json").write_bytes(data.replace(b"HERE", str(os.getpid()).encode()))
    result = skerry(*verb, SKERRY_DATA=str(tmp_path))
    assert result.exit_code == 3, result.exception
    assert result.stderr.startswith("Error: ")


def test_a_folder_in_the_place_of_the_ready_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "ready.json").mkdir()
    assert skerry("status", SKERRY_DATA=str(tmp_path)).exit_code == 3


def test_a_ready_file_of_an_older_server_has_no_socket_and_will_do(
    listeners: Listeners, tmp_path: Path
) -> None:
    write_ready(tmp_path, role="up", http=listeners.tcp().url, ca="")
    assert skerry("status", SKERRY_DATA=str(tmp_path)).exit_code == 0


def test_paths_from_nowhere_are_usage_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert skerry("status", "--data", "~nobody-of-that-name/skerry").exit_code == 2
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert skerry("status", "--data", "relative").exit_code == 2
    write_ready(tmp_path, socket="/nowhere", ca="/x", client_cert="/x", client_key="/x")
    assert skerry("cell", "list", "--data", str(tmp_path), "--socket", "relative").exit_code == 2


def test_a_relative_socket_is_taken_from_where_we_are(
    tmp_path: Path, authority: TestAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = authority.issue("admin", "admin")
    files = {"ca": str(authority.ca), "client_cert": str(pair.certificate), "client_key": str(pair.key)}
    write_ready(tmp_path, socket="/nowhere", **files)
    monkeypatch.chdir(tmp_path)
    result = skerry("container", "list", "--data", str(tmp_path), "--socket", "relative.sock")
    assert result.exit_code == 3
    assert f"Nothing answers at {tmp_path}/relative.sock" in result.stderr


@pytest.mark.parametrize("role", ["node", "server", "up"])
def test_a_skerry_that_was_killed_is_to_be_started_again_as_what_it_was(tmp_path: Path, role: str) -> None:
    write_ready(tmp_path, pid=NO_PID, role=role)
    result = skerry("status", "--data", str(tmp_path))
    assert result.exit_code == 3
    assert f"Start it again with 'skerry {role}'" in result.stderr


def test_whoever_waits_for_a_server_that_does_not_answer_is_told_where(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # which takes connections, and says nothing
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with Command(SimpleNamespace(data=tmp_path), "status", "--url", url) as process:
            read_until(process.stderr, f"No answer from {url} yet; waiting.".encode())


@pytest.mark.parametrize("url", ["http://a b", "http://x\ny", "http://[::1", "http://h:99999"])
def test_a_url_that_cannot_be_dialled_is_a_usage_error(url: str) -> None:
    assert skerry("status", "--url", url).exit_code == 2


def test_a_host_that_is_no_name_is_told(tmp_path: Path) -> None:
    assert skerry("status", "--url", "http://a..b").exit_code == 3


@pytest.mark.parametrize("token", ["skerry_\N{SNOWMAN}", "skerry_1\nX-Real-IP: 1"])
def test_a_token_that_no_header_can_hold_is_a_usage_error(listeners: Listeners, token: str) -> None:
    server = listeners.tcp()
    assert skerry("status", "--url", server.url, "--token", token).exit_code == 2
    assert server.asked == []


@pytest.mark.parametrize(
    ("ahead", "told"),
    [
        (7 * 86400, "in 7d"),
        (7 * 86400 - 0.2, "in 7d"),
        (86400 - 1, "in 1d"),
        (3600 - 0.1, "in 1h"),
        (90, "in 1m"),
        (59.7, "in 1m"),
        (45.2, "in 45s"),
        (20 * 3600, "in 20h"),
        (-86400 + 1, "23h ago"),
        (-59.7, "59s ago"),
    ],
)
def test_what_was_set_a_moment_ago_is_told_as_it_was_set(ahead: float, told: str) -> None:
    assert output.ago(1000.0 + ahead, now=1000.0) == told


def test_a_try_whose_time_has_come_is_made_now() -> None:
    assert output.next_try(time.time() + 150) in ("in 2m", "in 3m")
    assert output.next_try(time.time() - 1) == "now"
