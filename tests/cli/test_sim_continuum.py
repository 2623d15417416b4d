"""`skerry sim continuum` as a person and as a script uses it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from skerry.cli import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main.cli, ["sim", "continuum", "--for", "1s", *arguments])


def test_people_get_a_line_for_each_policy() -> None:
    result = run("--load", "0.5")
    assert result.exit_code == 0, result.output
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["POLICY", "UTILITY", "P50", "P95", "LATE", "DROPPED", "COLD", "OFFLOADED"]
    names = ["default", "localonly", "cloudonly", "edgeonly", "edgecloud", "qosaware"]
    assert [row.split()[0] for row in rows] == names


def test_scripts_get_the_numbers() -> None:
    result = run("--policy", "edgeonly", "--policy", "qosaware", "--seed", "7", "-o", "json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [one["policy"] for one in told] == ["edgeonly", "qosaware"]
    assert told[0]["calls"] == told[1]["calls"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "qosawre"], "did you mean 'qosaware'"),
        (["--load", "0"], "--load"),
        (["--for", "soon"], "is not a duration"),
    ],
)
def test_what_cannot_be_tried_is_refused(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
