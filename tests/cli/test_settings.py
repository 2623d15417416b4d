"""Settings: flags over environment over a file over defaults, and errors that help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from skerry.cli import settings
from skerry.model.settings import Settings, setting_fields


def load(
    flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None, file: Path | None = None
) -> Settings:
    return settings.load(flags or {}, str(file) if file else None, environment or {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "skerry.toml"
    path.write_text('[http]\nlisten = "127.0.0.1:1"\nmax_connections = 7\n[log]\nlevel = "debug"\n')
    return path


def test_without_anything_the_defaults_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_config_file", lambda: None)
    assert load() == Settings()


def test_flags_win_over_environment_and_environment_over_the_file(file: Path) -> None:
    got = load(
        {"http.listen": "127.0.0.1:3"},
        {"SKERRY_HTTP_LISTEN": "127.0.0.1:2", "SKERRY_LOG_LEVEL": "error"},
        file,
    )
    assert (got.http.listen, got.log.level, got.http.max_connections) == ("127.0.0.1:3", "error", 7)


def test_a_flag_that_was_not_given_does_not_count(file: Path) -> None:
    assert load({"http.listen": None}, {}, file).http.listen == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        (
            {"SKERRY_HTTP_LISTN": "x"},
            "'SKERRY_HTTP_LISTN' in the environment. The nearest known one is 'SKERRY_HTTP_LISTEN'",
        ),
        ({"SKERRY_HTTP_MAX_CONNECTIONS": "many"}, "SKERRY_HTTP_MAX_CONNECTIONS: expected `int`"),
        ({"SKERRY_HTTP_MAX_CONNECTIONS": "0"}, "SKERRY_HTTP_MAX_CONNECTIONS: expected `int` >= 1"),
        ({"SKERRY_LOG_LEVEL": "loud"}, "SKERRY_LOG_LEVEL: expected `str` matching regex"),
    ],
)
def test_a_bad_variable_is_named_with_what_is_wrong(environment: dict[str, str], complaint: str) -> None:
    with pytest.raises(click.UsageError) as error:
        load({}, environment)
    assert complaint in error.value.message


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[http]\nlisen = 'x'", "Unknown setting 'http.lisen'"),
        ("[http]\nlisen = 'x'", "The nearest known one is 'http.listen'"),
        ("[htttp]\nlisten = 'x'", "The nearest known one is 'http.listen'"),
        ("[http]\nmax_connections = '7'", "expected `int`, got `str`"),
        ("http = [", "not valid TOML"),
        ("[http]\ntls = 1", "'http.tls' in "),
    ],
)
def test_a_bad_file_is_named_with_the_key_and_what_is_wrong(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(click.UsageError) as error:
        load(file=path)
    assert complaint in error.value.message
    assert str(path) in error.value.message


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="cannot be read"):
        load(file=tmp_path / "none.toml")


def test_text_becomes_the_type_of_its_knob() -> None:
    got = load(
        {},
        {
            "SKERRY_HTTP_TLS": "true",
            "SKERRY_HTTP_NAMES": "a.example, b.example",
            "SKERRY_STORE_TIMEOUT_S": "2",
        },
    )
    assert (got.http.tls, got.http.names, got.store.timeout_s) == (True, ("a.example", "b.example"), 2.0)


def test_variables_of_the_client_are_no_settings() -> None:
    assert (
        load({}, {"SKERRY_URL": "http://x", "SKERRY_TOKEN": "t", "SKERRY_NAMESPACE": "n", "OTHER": "y"})
        == load()
    )


def test_the_tree_is_frozen() -> None:
    with pytest.raises(AttributeError):
        load().http.listen = "x"  # type: ignore[misc]


def test_every_knob_has_a_meaning_and_a_default_within_its_own_range() -> None:
    for knob in setting_fields().values():
        assert knob.meta.description, knob.key
        msgspec.convert(msgspec.to_builtins(knob.default), knob.type)


def test_no_two_knobs_share_a_variable() -> None:
    variables = [knob.variable for knob in setting_fields().values()]
    assert len(set(variables)) == len(variables)
