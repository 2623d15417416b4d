"""Contexts: servers by name, which of them a command uses, and that tokens are shown to nobody."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from skerry.client import contexts, discovery
from skerry.client.contexts import ContextFile, ServerContext
from skerry.client.discovery import TargetOptions
from skerry.client.errors import InvalidTarget
from tests.support import fake_servers
from tests.support.certificates import TestAuthority
from tests.support.fake_servers import FakeServer, skerry
from tests.support.skerry import COMMAND, environment

SECRET = "skerry_1_verysecret"
ABOUT = {"version": "1.2.3", "caller": "token:1", "role": "viewer"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of settings of a person without any."""
    for name in ("SKERRY_URL", "SKERRY_CONTEXT", "SKERRY_DATA", "SKERRY_TOKEN", "SKERRY_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "config" / "skerry"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_servers.on_tcp() as fake:
        fake.answer("GET /about", ABOUT)
        fake.answer("GET /token", {"tokens": []})
        yield fake


def done(*arguments: str, **environment: str) -> Result:
    """A command that must go well."""
    result = skerry(*arguments, **environment)
    assert result.exit_code == 0, result.stderr
    return result


def test_the_first_context_is_used_from_then_on_with_its_token(home: Path, server: FakeServer) -> None:
    added = done("context", "add", "prod", "--url", server.url, "--token", SECRET)
    assert "used from now on" in added.stdout
    assert "you are token:1, role viewer" in added.stderr
    done("token", "list")
    assert server.asked[-1][2]["Authorization"] == f"Bearer {SECRET}"


def test_a_second_context_is_used_when_it_is_chosen(home: Path, server: FakeServer) -> None:
    done("context", "add", "first", "--url", "http://127.0.0.1:9")
    done("context", "add", "second", "--url", server.url)
    assert skerry("token", "list").exit_code == 3
    done("token", "list", "--context", "second")
    done("token", "list", SKERRY_CONTEXT="second")
    done("context", "use", "second")
    done("token", "list")


def test_no_output_has_the_token(home: Path, server: FakeServer) -> None:
    outputs = [done("context", "add", "prod", "--url", server.url, "--token", SECRET)]
    outputs += [done("context", verb, "-o", form) for verb in ("list", "show") for form in ("table", "json")]
    outputs += [done("context", "use", "prod"), done("context", "remove", "prod")]
    assert all(SECRET not in result.output for result in outputs)
    assert SECRET not in repr(ServerContext("prod", "http://x", SECRET))


def test_the_file_is_for_its_owner_alone_whatever_the_umask(home: Path, server: FakeServer) -> None:
    before = os.umask(0)
    try:
        done("context", "add", "prod", "--url", server.url, "--token", SECRET)
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / "contexts.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("form", ["-", "@"])
def test_a_token_is_read_from_standard_input_or_a_file(home: Path, tmp_path: Path, form: str) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    given = "-" if form == "-" else f"@{tmp_path / 'token'}"
    ended = subprocess.run(
        [*COMMAND, "context", "add", "prod", "--url", "http://127.0.0.1:9", "--token", given],
        input=f"{SECRET}\n",
        env=environment(XDG_CONFIG_HOME=str(home.parent)),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert contexts.read(home / "contexts.json").contexts["prod"].token == SECRET


def test_the_certificate_of_the_ca_is_kept_in_the_context(
    home: Path, tmp_path: Path, authority: TestAuthority
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served = authority.issue("server", server=True)
    context.load_cert_chain(served.certificate, served.key)
    with fake_servers.on_tcp(context) as fake:
        fake.answer("GET /about", ABOUT)
        fake.answer("GET /token", {"tokens": []})
        copy = tmp_path / "ca.crt"
        copy.write_bytes(authority.ca.read_bytes())
        done("context", "add", "prod", "--url", fake.url, "--ca", str(copy))
        copy.unlink()
        done("token", "list")
        done("context", "add", "bare", "--url", fake.url)
        refused = skerry("token", "list", "--context", "bare")
    assert refused.exit_code == 3
    assert "cannot be verified" in refused.stderr


def find(**given: str) -> str:
    return discovery.find(TargetOptions(**given)).url


def test_a_flag_is_before_the_environment_and_that_before_the_current_context(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {name: ServerContext(name, f"http://{name}:1") for name in ("current", "named", "flag")}
    home.mkdir(parents=True)
    contexts.write(home / "contexts.json", ContextFile(made, "current"))
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "ready.json").write_text(json.dumps({"pid": os.getpid(), "http": "http://here:1"}))
    assert find() == "http://current:1"
    monkeypatch.setenv("SKERRY_DATA", str(folder))
    assert find() == "http://here:1"
    monkeypatch.setenv("SKERRY_CONTEXT", "named")
    assert find() == "http://named:1"
    assert find(data=str(folder)) == "http://here:1"
    monkeypatch.setenv("SKERRY_URL", "http://url:1")
    assert find() == "http://url:1"
    assert find(context="flag") == "http://flag:1"
    assert find(url="http://option:1") == "http://option:1"
    assert find(context="local") == "http://here:1"


def test_the_token_of_a_context_is_sent_to_no_other_server(
    home: Path, server: FakeServer, tmp_path: Path
) -> None:
    done("context", "add", "prod", "--url", "http://127.0.0.1:9", "--token", SECRET)
    done("token", "list", "--url", server.url)
    done("token", "list", SKERRY_URL=server.url)
    (tmp_path / "ready.json").write_text(json.dumps({"pid": os.getpid(), "http": server.url}))
    done("token", "list", "--data", str(tmp_path))
    assert len(server.asked) == 3
    assert not [headers for _, _, headers, _ in server.asked if "Authorization" in headers]


def test_a_token_of_the_command_line_is_before_that_of_the_context(home: Path, server: FakeServer) -> None:
    done("context", "add", "prod", "--url", server.url, "--token", SECRET)
    done("token", "list", "--token", "other")
    done("token", "list", SKERRY_TOKEN="of-the-environment")
    done("token", "list", "--context", "prod", SKERRY_TOKEN="of-the-environment")
    sent = [headers["Authorization"] for _, path, headers, _ in server.asked if path == "/token"]
    assert sent == ["Bearer other", "Bearer of-the-environment", f"Bearer {SECRET}"]


def test_without_the_current_context_the_skerry_of_this_machine_is_used(
    home: Path, server: FakeServer
) -> None:
    done("context", "add", "prod", "--url", server.url)
    removed = done("context", "rm", "prod")
    assert "Skerry of this machine" in removed.stderr
    assert json.loads(done("context", "show", "-o", "json").stdout)["name"] == "local"


@pytest.mark.parametrize(
    "arguments",
    [
        ("add", "local", "--url", "http://x"),
        ("add", "a b", "--url", "http://x"),
        ("add", "../x", "--url", "http://x"),
        ("add", "x", "--url", "ftp://x"),
        ("add", "x", "--url", "http://x", "--token", "a b"),
        ("add", "x", "--url", "http://x", "--ca", "/nowhere"),
        ("use", "nothing"),
        ("remove", "nothing"),
        ("remove", "local"),
        ("show", "nothing"),
    ],
    ids=" ".join,
)
def test_what_is_no_context_is_refused_in_words(home: Path, arguments: tuple[str, ...]) -> None:
    result = skerry("context", *arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert not (home / "contexts.json").exists()


def test_a_context_is_replaced_only_on_request(home: Path, server: FakeServer) -> None:
    done("context", "add", "prod", "--url", "http://127.0.0.1:9")
    assert skerry("context", "add", "prod", "--url", server.url).exit_code == 1
    done("context", "add", "prod", "--url", server.url, "--replace")
    done("token", "list")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"contexts": 5}', '{"contexts": {"a": {}}}', '{"contexts": {}, "current": 5}']
)
def test_a_file_that_is_none_is_an_error_that_names_it(home: Path, text: str) -> None:
    home.mkdir(parents=True)
    (home / "contexts.json").write_text(text)
    result = skerry("context", "list")
    assert result.exit_code == 2
    assert str(home / "contexts.json") in result.stderr


def test_url_and_context_are_not_both_taken(home: Path) -> None:
    with pytest.raises(InvalidTarget, match="both name a server"):
        find(url="http://x", context="y")


def test_commands_that_add_contexts_at_the_same_time_lose_none(home: Path) -> None:
    started = [
        subprocess.Popen(
            [*COMMAND, "context", "add", f"c{number}", "--url", "http://127.0.0.1:9"],
            env=environment(XDG_CONFIG_HOME=str(home.parent)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number in range(6)
    ]
    assert [process.wait() for process in started] == [0] * 6
    assert len(contexts.read(home / "contexts.json").contexts) == 6
