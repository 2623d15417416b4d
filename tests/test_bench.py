"""Benchmarks and soak campaigns can be started: their modules import, and say what they measure. Their
results are printed, and written into the page of the last run.

What they call is checked by mypy, as for the program itself; nothing is measured here.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import bench
import pytest
from bench import __main__ as command
from bench import last_run
from bench.__main__ import TOPICS
from bench.figures import Figure
from bench.last_run import BEGIN, END, TopicResult, merge, part
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


KEPT = Figure("calls", 0.31, "x echo", at_least=0.3, peer=9000.0, peer_unit="calls/s", peer_name="bare echo")
BROKEN = Figure("start, p50", 1.6, "x runc run", at_most=1.5)
TOLD = Figure("memory", 12.0, "MB", note="of all")


def result(topic: str, *figures: Figure, date: str = "2026-01-02 03:04 UTC", error: str = "") -> TopicResult:
    return TopicResult(topic, figures, 7.0, date, "2 processors", error)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of results in place of the real one."""
    path = tmp_path / "performance.md"
    path.write_text(f"# Speed\n\n{BEGIN}\n{END}\n\n## More\n")
    monkeypatch.setattr(last_run.write, "__defaults__", (path,))
    return path


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two topics that measure nothing: one whose promise holds, and one that fails after it broke one."""

    def failing() -> Iterator[Figure]:
        yield BROKEN
        raise RuntimeError("no runc here")

    made = {"bench.good": lambda: iter([KEPT, TOLD]), "bench.bad": failing}
    monkeypatch.setattr(command, "TOPICS", ("good", "bad"))
    monkeypatch.setattr(
        command, "importlib", SimpleNamespace(import_module=lambda name: SimpleNamespace(measure=made[name]))
    )


def test_a_promise_is_printed_with_its_verdict_and_the_figure_of_the_peer_in_the_same_run() -> None:
    words = " ".join(command.line(KEPT).split())
    assert words == "calls 0.31 x echo promised >= 0.3: HOLDS [bare echo 9,000.00 calls/s]"
    assert "promised <= 1.5: DOES NOT HOLD" in command.line(BROKEN)
    assert "promised" not in command.line(TOLD)


@pytest.mark.usefixtures("topics")
def test_a_topic_that_fails_does_not_end_the_run_and_is_named_with_what_does_not_hold(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["bad", "good"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: RuntimeError: no runc here" in printed
    assert "good:" in printed
    assert printed.splitlines()[-3:] == [
        "1 promise(s) do not hold, 1 benchmark(s) failed:",
        "  bad: start, p50",
        "  bad: RuntimeError: no runc here",
    ]


@pytest.mark.usefixtures("topics")
def test_the_json_document_has_every_figure_and_nothing_else_is_on_the_output(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["good", "--json"]) == 0
    (topic,) = json.loads(capsys.readouterr().out)["topics"]
    assert (topic["topic"], topic["error"]) == ("good", "")
    assert "processors (" in topic["machine"]
    assert [(figure["name"], figure["holds"], figure["peer"]) for figure in topic["figures"]] == [
        ("calls", True, 9000.0),
        ("memory", True, None),
    ]


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ([], ["good", "bad"]),
        (["--no-write"], []),
        (["good"], []),
        (["good", "--write"], ["good"]),
    ],
)
def test_the_results_are_written_after_a_whole_run_or_if_asked_for(
    page: Path, arguments: list[str], written: list[str]
) -> None:
    command.main(arguments)
    text = page.read_text()
    assert [topic for topic in ("good", "bad") if f"### {topic}\n" in text] == written
    assert text.startswith("# Speed\n")
    assert text.endswith("## More\n")


def test_a_topic_that_is_not_there_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["stor"]) == 2
    assert "no benchmark named stor; there are: store, schedule" in capsys.readouterr().err


def test_help_lists_the_topics_and_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("--json", "--write", "--no-write", *TOPICS))


def test_a_part_of_the_page_has_promises_peers_date_and_machine() -> None:
    text = part(result("store", KEPT, BROKEN, TOLD))
    assert "2026-01-02 03:04 UTC; 2 processors; took 7 s." in text
    assert "| calls | 0.31 x echo | >= 0.3: holds | bare echo 9,000.00 calls/s |" in text
    assert "| start, p50 | 1.60 x runc run | <= 1.5: **does not hold** |  |" in text
    assert "memory" not in text  # it is neither
    assert "could be measured: no runc" in part(result("store", error="no runc"))


def test_a_run_replaces_the_parts_of_its_topics_and_leaves_the_others_in_the_order_of_topics() -> None:
    order = ("store", "cells", "names")
    page = f"before\n{BEGIN}\n{END}\nafter\n"
    page = merge(page, [result("names", KEPT), result("store", KEPT, date="long ago")], order)
    once = merge(page, [result("cells", KEPT), result("store", BROKEN, date="new")], order)
    assert [line for line in once.splitlines() if line.startswith("### ")] == [
        "### store",
        "### cells",
        "### names",
    ]
    assert "long ago" not in once
    assert once.startswith("before\n")
    assert once.endswith("after\n")
    assert merge(once, [], order) == once
    assert "### cells" not in merge(once, [], ("store", "names"))  # no such topic any more


def test_a_page_without_its_marks_is_not_overwritten() -> None:
    with pytest.raises(ValueError, match="last run: begin"):
        merge("# Speed\n", [result("store", KEPT)], ("store",))
