"""`skerry sim` as a person and as a script uses it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import structlog
from click.testing import CliRunner

from skerry.cli import main
from skerry.sim import scenarios


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_a_good_day_is_shown_as_it_goes_and_summed_up() -> None:
    result = CliRunner().invoke(main.cli, ["sim", "--nodes", "3", "--instances", "10"])
    assert result.exit_code == 0, result.output
    assert "3 nodes" in result.stderr
    assert "10 RUNNING" in result.stdout
    assert "creation to RUNNING" in result.stdout
    assert "No invariant was violated" in result.stdout


def test_a_faulty_scenario_is_printed_as_json() -> None:
    arguments = ["sim", "--nodes", "3", "--instances", "6", "--faults", "--for", "30s", "-o", "json"]
    result = CliRunner().invoke(main.cli, arguments)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["wrong"] == []
    assert "converged after the last fault" in told["figures"]


def test_what_never_may_happen_is_told_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = scenarios.ScenarioResult([("instances", "none")], [f"i{number} runs twice" for number in range(30)])
    monkeypatch.setattr(scenarios, "run_faulty", lambda scenario, for_s, show: bad)
    result = CliRunner().invoke(main.cli, ["sim", "--faults"])
    assert result.exit_code == 1
    assert "VIOLATED: i0 runs twice" in result.stderr
    assert "and 10 more" in result.stderr


@pytest.mark.parametrize("arguments", [["--nodes", "0"], ["--instances", "-1"], ["--for", "soon"]])
def test_bad_numbers_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(main.cli, ["sim", *arguments]).exit_code == 2


def test_coordinates_are_shown_by_rounds_ever_more_rarely() -> None:
    result = CliRunner().invoke(main.cli, ["sim", "coordinates", "--nodes", "30", "--rounds", "12"])
    assert result.exit_code == 0, result.output
    first, columns, *rows = result.stdout.splitlines()
    assert "20% of triangles violated" in first
    assert columns.split()[:3] == ["ROUND", "MEDIAN", "ERROR"]
    assert [row.split()[0] for row in rows] == ["1", "2", "5", "10", "12"]


def test_coordinates_for_scripts_are_all_rounds() -> None:
    arguments = ["sim", "coordinates", "--nodes", "30", "--rounds", "6", "--violated", "0.1", "-o", "json"]
    result = CliRunner().invoke(main.cli, arguments)
    told = json.loads(result.stdout)
    assert [one["number"] for one in told["rounds"]] == [1, 2, 3, 4, 5, 6]
    assert told["rounds"][-1]["median"] < told["rounds"][0]["median"]
    assert told["violated"] == pytest.approx(0.1, abs=0.01)


def test_an_option_before_the_command_is_not_lost_without_a_word() -> None:
    result = CliRunner().invoke(main.cli, ["sim", "--nodes", "30", "coordinates"])
    assert result.exit_code == 2
    assert "--nodes: write options of 'coordinates' after that word" in result.stderr
