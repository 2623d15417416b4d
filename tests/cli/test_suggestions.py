"""Words of Docker, Kubernetes and Nomad lead to the command that does the same here."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from skerry.cli import main, suggestions
from skerry.cli.suggestions import MEANINGS, suggest
from tests.support.fake_servers import skerry

COMMANDS = sorted({one.command for found in MEANINGS.values() for one in found})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ps", "skerry get instances"),
        ("images", "skerry image list"),
        ("rm", "skerry delete instance"),
        ("kill", "skerry stop"),
        ("restart", "skerry stop INSTANCE && skerry start INSTANCE"),
        ("scale", "skerry service scale"),
        ("deploy", "skerry fn deploy"),
        ("rollout", "skerry service rollback"),
        ("drain", "skerry node drain"),
        ("alloc", "skerry describe instance"),
        ("expose", "skerry route add"),
        ("PS", "skerry get instances"),
        ("secrets", "skerry secret list"),
        ("use", "skerry context use"),
        ("dashboard", "skerry console"),
        ("export", "skerry image list"),
        ("lend", "skerry market sell"),
        ("hello", "skerry image sample"),
        ("gc", "skerry image prune"),
    ],
)
def test_a_word_of_another_program_leads_to_ours(typed: str, meant: str) -> None:
    result = skerry(typed, "whatever", "--follows")
    assert result.exit_code == 2
    assert f"Unknown command '{typed}'" in result.stderr
    assert meant in result.stderr


@pytest.mark.parametrize(
    ("typed", "meant"), [("servce", "skerry service"), ("statsu", "skerry status"), ("lgos", "skerry logs")]
)
def test_a_slip_of_the_fingers_leads_to_the_nearest_command(typed: str, meant: str) -> None:
    result = skerry(typed)
    assert result.exit_code == 2
    assert f"did you mean '{meant}'" in result.stderr


def test_a_word_that_is_nearly_one_of_another_program_is_understood() -> None:
    assert "skerry service rollback" in suggest("rollbak", main.VERBS)


def test_what_nobody_knows_leads_to_the_help() -> None:
    for word in ("xyzzy", "trust", "rename"):
        result = skerry(word)
        assert result.exit_code == 2
        assert "see 'skerry --help'" in result.stderr


def test_a_wrong_word_in_a_group_leads_to_the_nearest_of_the_group() -> None:
    result = skerry("service", "rolback", "web")
    assert result.exit_code == 2
    assert "rollback" in result.stderr


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("get pods", "skerry get instances"),
        ("describe pod web", "skerry describe instances"),
        ("delete deployment web", "skerry delete services"),
        ("get jobs", "skerry job list"),
        ("get cm", "skerry config list"),
        ("get all", "skerry top --once"),
        ("get srvice", "skerry get service"),
        ("get web", "skerry get instance web"),
    ],
)
def test_a_kind_of_another_program_leads_to_ours(line: str, meant: str) -> None:
    result = skerry(*line.split())
    assert result.exit_code == 2
    assert f"'{meant}'" in result.stderr.replace("'cli ", "'skerry ")  # as click's runner calls it


def test_every_list_that_a_kind_leads_to_exists() -> None:
    for group in suggestions._OTHER_KINDS:
        command = main.cli.get_command(click.Context(main.cli), group.split()[1])
        assert isinstance(command, click.Group)
        assert command.get_command(click.Context(command), "list") is not None, group


def test_no_word_hides_a_command_that_exists() -> None:
    assert set(MEANINGS) & set(main.VERBS) == set()


@pytest.mark.parametrize("line", [each for each in COMMANDS if each.startswith("skerry ")])
def test_every_command_that_is_suggested_exists_with_its_options(line: str) -> None:
    for part in line.split(" && "):
        command: click.Command = main.cli
        context = click.Context(main.cli)
        words = shlex.split(part)[1:]
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(context, words[0])
            assert found is not None, f"{part}: {words[0]}"
            command = found
            words = words[1:]
        known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        used = {
            word for word in words[: words.index("--") if "--" in words else None] if word.startswith("-")
        }
        used = {flag for word in used for flag in ([word] if word.startswith("--") else _short(word))}
        assert used <= known, part


def _short(word: str) -> list[str]:
    return [f"-{letter}" for letter in re.sub(r"[^a-zA-Z]", "", word)]
