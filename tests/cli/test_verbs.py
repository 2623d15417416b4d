"""Verbs as a person or a script uses them, against a server that plays its part."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from skerry.cli import main, output
from skerry.cli.commands.events import ServerSentEvent, parse
from skerry.model.invitations import Invitation, JoinCredentials
from skerry.model.settings import Settings
from skerry.model.token_text import TokenText
from tests.support import fake_servers
from tests.support.fake_servers import FakeServer, skerry


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_servers.on_tcp() as fake:
        yield fake


ABOUT = {
    "version": "1.2.3",
    "started_at": 0.0,
    "store": "sqlite",
    "pid": 42,
    "lacking": ["root: no cells"],
    "warnings": ["runc 1.1 may allow container escapes"],
}


def test_status_tells_version_readiness_what_is_lacking_and_what_weakens_it(server: FakeServer) -> None:
    server.answer("GET /about", ABOUT)
    server.answer("GET /readyz", {"ready": True, "checks": {"store": "ok"}})
    result = skerry("status", "--url", server.url)
    assert result.exit_code == 0
    rows = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert (rows["version"], rows["ready"], rows["unavailable"]) == ("1.2.3", "yes", "root: no cells")
    assert rows["warning"] == "runc 1.1 may allow container escapes"


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


def invitation_to(*urls: str) -> str:
    token = TokenText("0" * 26, "a" * 52, "f" * 32).format()
    return Invitation(urls, "f" * 64, token).format()


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.1"])
def test_for_a_node_an_invitation_is_printed_alone_and_told_how_to_use(server: FakeServer, host: str) -> None:
    text = invitation_to(f"https://{host}:1323")
    made = {"id": "1", "role": "node", "token": "skerry_1_x_y", "expires_at": 9e9, "invitation": text}
    server.answer("POST /token", made)
    result = skerry("token", "create", "--role", "node", "--url", server.url)
    assert result.stdout == f"{text}\n"
    assert "skerry node --join INVITATION" in result.stderr
    assert ("other machines cannot reach it" in result.stderr) is (host == "127.0.0.1")
    as_json = skerry("token", "create", "--role", "node", "--url", server.url, "-o", "json")
    assert json.loads(as_json.stdout)["invitation"] == text


@pytest.mark.parametrize("way", ["flag", "file", "stdin", "environment", "token"])
def test_an_invitation_is_taken_from_anywhere_and_its_token_is_no_setting(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = invitation_to("https://192.0.2.1:1323", "https://hub:1323")
    given: list[tuple[str, Settings, JoinCredentials]] = []

    def run(role: str, settings: Settings, folder: Path, *, admission: JoinCredentials, **_: object) -> int:
        given.append((role, settings, admission))
        return 0

    monkeypatch.setattr("skerry.daemon.process.run", run)
    (tmp_path / "invitation").write_text(f"{text}\n")
    flags = {
        "flag": ["--join", text],
        "file": ["--join", f"@{tmp_path / 'invitation'}"],
        "stdin": ["--join", "-"],
        "environment": [],
        "token": ["--token", text],
    }[way]
    environment = {"SKERRY_NODE_JOIN": text} if way == "environment" else {}
    result = CliRunner().invoke(main.cli, ["node", *flags], input=f"{text}\n", env=environment)
    assert result.exit_code == 0, result.output
    [(role, settings, admission)] = given
    assert (role, settings.node.join) == ("node", "https://192.0.2.1:1323,https://hub:1323")
    assert (admission.fingerprint, admission.token) == ("f" * 64, Invitation.parse(text).token)
    assert "a" * 52 not in repr(settings)


@pytest.mark.parametrize("spoilt", ["skerry-join-v1.abc", "@/nowhere/at/all"])
def test_an_invitation_that_is_none_is_refused_before_anything_is_started(spoilt: str) -> None:
    result = skerry("node", "--join", spoilt)
    assert result.exit_code == 1
    assert "--join: " in result.stderr


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
    assert list(parse(lines)) == [ServerSentEvent("1", "a", "x\ny"), ServerSentEvent("", "message", "z")]


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
