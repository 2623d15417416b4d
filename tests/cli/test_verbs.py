"""Verbs as a person or a script uses them, against a server that plays its part."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skerry.cli import main, output
from skerry.cli.events import Told, parse


@dataclass
class FakeServer:
    """Answers what it is told to answer, and remembers what it was asked."""

    url: str = ""
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)

    def answer(self, route: str, value: Any, status: int = 200) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.answers[route] = (status, data)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fake.asked.append((self.command, self.path, dict(self.headers), body))
            route = f"{self.command} {self.path.partition('?')[0]}"
            status, data = fake.answers.get(route, (404, b'{"error": "nothing there", "code": "not-found"}'))
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = handle_any

        def log_message(self, format: str, *args: Any) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake
    listener.shutdown()
    listener.server_close()
    thread.join()


def skerry(*arguments: str, **environment: str) -> Result:
    clean = {name: None for name in os.environ if name.startswith("SKERRY_")}
    return CliRunner().invoke(main.cli, list(arguments), env={**clean, **environment})


ABOUT = {"version": "1.2.3", "started_at": 0.0, "store": "sqlite", "pid": 42, "lacking": ["root: no cells"]}


def test_status_tells_version_readiness_and_what_is_lacking(server: FakeServer) -> None:
    server.answer("GET /about", ABOUT)
    server.answer("GET /readyz", {"ready": True, "checks": {"store": "ok"}})
    result = skerry("status", "--url", server.url)
    assert result.exit_code == 0
    rows = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert (rows["version"], rows["ready"], rows["lacks"]) == ("1.2.3", "yes", "root: no cells")


def test_status_exits_with_1_and_names_the_check_if_the_server_is_not_ready(server: FakeServer) -> None:
    server.answer("GET /about", ABOUT)
    server.answer("GET /readyz", {"ready": False, "checks": {"store": "etcd is away"}}, status=503)
    result = skerry("status", "--url", server.url)
    assert result.exit_code == 1
    assert "etcd is away" in result.stdout


def test_json_output_can_be_read_by_a_program(server: FakeServer) -> None:
    server.answer("GET /about", ABOUT)
    server.answer("GET /readyz", {"ready": True, "checks": {"store": "ok"}})
    value = json.loads(skerry("status", "--url", server.url, "-o", "json").stdout)
    assert value["ready"] is True
    assert value["checks"] == {"store": "ok"}


def test_a_token_is_printed_alone_on_stdout_so_that_a_script_can_keep_it(server: FakeServer) -> None:
    server.answer("POST /token", {"id": "1", "role": "viewer", "token": "skerry_1_x", "expires_at": None})
    result = skerry("token", "create", "--role", "viewer", "--ttl", "2h", "--url", server.url)
    assert result.stdout == "skerry_1_x\n"
    assert json.loads(server.asked[0][3]) == {"role": "viewer", "note": "", "ttl_s": 7200.0}


def test_a_join_token_comes_with_the_command_that_uses_it(server: FakeServer) -> None:
    server.answer("POST /token", {"id": "1", "role": "node", "token": "skerry_1_x_y", "expires_at": 9e9})
    result = skerry("token", "create", "--role", "node", "--url", server.url)
    assert f"skerry node --join {server.url} --token skerry_1_x_y" in result.stderr


def test_the_token_of_the_environment_is_sent_as_bearer(server: FakeServer) -> None:
    server.answer("GET /token", {"tokens": []})
    skerry("token", "list", SKERRY_URL=server.url, SKERRY_TOKEN="skerry_1_x")
    assert server.asked[0][2]["Authorization"] == "Bearer skerry_1_x"


def test_what_the_server_refuses_is_told_in_its_own_words(server: FakeServer) -> None:
    server.answer("DELETE /token/zzz", {"error": "there is no token zzz", "code": "not-found"}, status=404)
    result = skerry("token", "revoke", "zzz", "--url", server.url)
    assert result.exit_code == 1
    assert "there is no token zzz" in result.stderr


def test_names_are_quoted_into_the_path(server: FakeServer) -> None:
    skerry("token", "revoke", "../about?x", "--url", server.url)
    assert server.asked[0][1] == "/token/..%2Fabout%3Fx"


def test_url_wins_over_environment_and_environment_over_the_data_folder(
    server: FakeServer, tmp_path: Path
) -> None:
    server.answer("GET /token", {"tokens": []})
    ready = {"pid": os.getpid(), "http": server.url, "ca": ""}
    (tmp_path / "ready.json").write_text(json.dumps(ready))
    nowhere = "http://127.0.0.1:9"
    assert skerry("token", "list", "--data", str(tmp_path)).exit_code == 0
    assert skerry("token", "list", SKERRY_DATA=str(tmp_path)).exit_code == 0
    assert skerry("token", "list", "--data", str(tmp_path), SKERRY_URL=nowhere).exit_code == 3
    assert skerry("token", "list", "--url", server.url, SKERRY_URL=nowhere).exit_code == 0


def test_without_a_server_the_exit_code_is_3_and_the_next_step_is_told(tmp_path: Path) -> None:
    result = skerry("status", "--data", str(tmp_path))
    assert result.exit_code == 3
    assert "skerry up" in result.stderr


def test_a_server_that_died_is_told_with_its_pid(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text(
        json.dumps({"pid": 2**22 + 1, "http": "http://127.0.0.1:9", "ca": ""})
    )
    result = skerry("status", "--data", str(tmp_path))
    assert result.exit_code == 3
    assert str(2**22 + 1) in result.stderr


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://[::"])
def test_what_is_no_url_is_a_usage_error(url: str) -> None:
    assert skerry("status", "--url", url).exit_code == 2


def test_events_are_shown_one_a_line(server: FakeServer) -> None:
    event = {
        "kind": "token.created",
        "subject": "token/1",
        "at": 0.0,
        "actor": "uid:0",
        "reason": "",
        "data": {"role": "viewer"},
    }
    server.answer(
        "GET /events", f"id: 7\nevent: token.created\ndata: {json.dumps(event)}\n\n: beat\n\n".encode()
    )
    (line,) = skerry("events", "--url", server.url).stdout.splitlines()
    assert "token.created" in line
    assert "role=viewer" in line
    value = json.loads(skerry("events", "--url", server.url, "-o", "json").stdout)
    assert value == {"id": "7", **event}


def test_events_pass_kind_and_place_on(server: FakeServer) -> None:
    server.answer("GET /events", b"")
    skerry("events", "--url", server.url, "--kind", "token,node.joined", "--after", "41")
    _, path, headers, _ = server.asked[0]
    assert path == "/events?kind=token%2Cnode.joined&follow=false"
    assert headers["Last-Event-ID"] == "41"


def test_an_event_stream_is_taken_apart_by_its_blank_lines() -> None:
    lines = [": hello", "", "id: 1", "event: a", "data: x", "data: y", "", "data:z", "", "id: 9"]
    assert list(parse(lines)) == [Told("1", "a", "x\ny"), Told("", "message", "z")]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("7d", 604800), ("30", 30)]
)
def test_durations_are_written_as_people_write_them(text: str, seconds: float) -> None:
    assert output.Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "0", "1w", "nan", "inf"])
def test_what_is_no_duration_is_refused(server: FakeServer, text: str) -> None:
    result = skerry("token", "create", "--role", "viewer", "--ttl", text, "--url", server.url)
    assert result.exit_code == 2
    assert server.asked == []


def test_an_unknown_verb_names_the_nearest_one() -> None:
    result = skerry("statsu")
    assert result.exit_code == 2
    assert "Did you mean 'status'?" in result.stderr
