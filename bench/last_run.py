"""The results of benchmarks in docs/performance.md: one part for each topic, which a run of it replaces.

A part has the date and the machine, because not all topics need be run on the same. Only what is between the
two marks is changed.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.figures import Figure, number

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- last run: begin -->", "<!-- last run: end -->"
_HEADING = "### "
_TABLE = "| measured | figure | promised | peer or floor, same run |\n|---|---|---|---|"


@dataclass(frozen=True)
class TopicResult:
    """One topic as it was measured."""

    topic: str
    figures: Sequence[Figure]
    seconds: float
    date: str  # UTC
    machine: str
    error: str = ""  # why it has not all of its figures

    @property
    def broken(self) -> list[Figure]:
        return [figure for figure in self.figures if not figure.holds]

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        figures = [asdict(figure) | {"holds": figure.holds} for figure in self.figures]
        return asdict(self) | {"figures": figures}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def machine() -> str:
    """Processors, memory, kernel and Python of this machine, and how busy it was."""
    model = "unknown processor"
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if "MemTotal" in line), 0)
    return (
        f"{os.cpu_count()} processors ({model}), {memory / 1024**2:.0f} GB, "
        f"Linux {platform.release()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def part(result: TopicResult) -> str:
    """The part of the page for one topic. Figures that are no promise are in it only if a peer is beside."""
    lines = [
        f"{_HEADING}{result.topic}",
        "",
        f"{result.date}; {result.machine}; took {result.seconds:.0f} s.",
        "",
    ]
    if result.error:
        lines += [f"Not all of it could be measured: {result.error}", ""]
    shown = [figure for figure in result.figures if figure.is_promise or figure.peer is not None]
    if not shown:
        return "\n".join(lines)
    lines.append(_TABLE)
    for figure in shown:
        promised = f"{figure.promise}: {'holds' if figure.holds else '**does not hold**'}"
        cells = (
            figure.name,
            f"{number(figure.value)} {figure.unit}".strip(),
            promised if figure.is_promise else "",
            figure.beside,
        )
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join([*lines, ""])


def merge(page: str, results: Sequence[TopicResult], order: Sequence[str]) -> str:
    """The page with the parts of `results` in place of earlier ones; topics that are no more go."""
    before, begin, rest = page.partition(BEGIN)
    inside, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    parts = {**_parts(inside), **{result.topic: part(result) for result in results}}
    chosen = [parts[topic].strip() for topic in order if topic in parts]
    return f"{before}{BEGIN}\n\n{''.join(each + chr(10) * 2 for each in chosen)}{END}{after}"


def _parts(text: str) -> Mapping[str, str]:
    found = re.split(rf"^{_HEADING}(.+)$", text, flags=re.MULTILINE)[1:]
    return {topic: f"{_HEADING}{topic}{body}" for topic, body in zip(found[::2], found[1::2], strict=True)}


def write(results: Sequence[TopicResult], order: Sequence[str], page: Path = PAGE) -> None:
    page.write_text(merge(page.read_text(), results, order))
