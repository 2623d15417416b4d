"""Benchmarks and soak campaigns can be started: their modules import, and say what they measure.

What they call is checked by mypy, as for the program itself; nothing is measured here.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import bench
import pytest
from bench.__main__ import TOPICS
from bench.soak.__main__ import CAMPAIGNS, OPTIONS

MODULES = [
    path.relative_to(Path(bench.__file__).parent.parent).with_suffix("").as_posix().replace("/", ".")
    for path in sorted(Path(bench.__file__).parent.rglob("*.py"))
]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_of_the_benchmarks_imports(name: str) -> None:
    importlib.import_module(name)


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_measures_without_being_given_anything(topic: str) -> None:
    measure = importlib.import_module(f"bench.{topic}").measure
    assert [name for name, each in inspect.signature(measure).parameters.items() if _is_needed(each)] == []


@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_every_campaign_of_the_soak_takes_its_options_and_needs_none(campaign: str) -> None:
    run = inspect.signature(importlib.import_module(f"bench.soak.{campaign}").run)
    assert [name for name, each in run.parameters.items() if _is_needed(each)] == []
    run.bind(**{name: kind() for name, kind in OPTIONS[campaign].items()})


def _is_needed(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty
