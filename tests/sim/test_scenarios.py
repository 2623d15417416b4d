"""Whole days: a good one on a real disk, bad ones in simulated time, which are the same again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.sim import scenarios
from skerry.sim.scenarios import Scenario, ScenarioProgress
from tests.test_repo import ROOT


async def test_a_healthy_scenario_ends_with_everything_running(tmp_path: Path) -> None:
    shown: list[ScenarioProgress] = []
    outcome = await scenarios.run_healthy(Scenario(5, 40, seed=1), tmp_path, shown.append)
    assert outcome.wrong == []
    assert dict(outcome.figures)["instances"] == "40 RUNNING"
    assert shown[-1].counts == {"RUNNING": 40}
    assert shown[-1].nodes == 5


@pytest.mark.parametrize("seed", range(3))
def test_a_faulty_scenario_converges(seed: int) -> None:
    outcome = scenarios.run_faulty(Scenario(5, 20, seed), 200.0, lambda progress: None)
    assert outcome.wrong == []
    figures = dict(outcome.figures)
    assert any(name.startswith("times: ") for name in figures)
    assert figures["converged after the last fault"] != "never"


def figures(seed: int) -> list[tuple[str, str]]:
    outcome = scenarios.run_faulty(Scenario(4, 10, seed), 100.0, lambda progress: None)
    return [figure for figure in outcome.figures if figure[0] != "simulated"]  # that tells real time


def test_another_seed_is_another_day() -> None:
    assert figures(7) != figures(8)


def test_the_same_seed_is_the_same_day_in_any_process() -> None:
    """Sets of texts have another order in each process: nothing may hang on that."""
    script = "from tests.sim.test_scenarios import figures; print(figures(7))"
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for seed in ("1", "2")
    }
    assert told == {str(figures(7))}
