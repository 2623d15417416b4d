"""Run the benchmarks, print every figure with that of the peer in the same run, and which promises hold.

`make bench` runs all of them and writes the results into docs/performance.md; `make bench ARGS="store"` runs
one. Each module named in `TOPICS` has a `measure()` that yields figures. The exit code is 1 if a promise does
not hold or a benchmark fails, so that a script can tell; no test asserts a time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence

import structlog

from bench import last_run
from bench.figures import Figure, number
from bench.last_run import TopicResult

TOPICS = (
    "store",
    "schedule",
    "cells",
    "images",
    "containers",
    "state",
    "mesh",
    "walls",
    "checks",
    "cluster",
    "services",
    "balancing",
    "routes",
    "functions",
    "bursts",
    "templates",
    "rootless",
    "neighbours",
    "continuum",
    "market",
    "floods",
    "names",
    "console",
    "metrics",
    "many_nodes",
    "footprint",
)


def line(figure: Figure) -> str:
    verdict = f"   promised {figure.promise}: {_verdict(figure)}" if figure.is_promise else ""
    beside = f"   [{figure.beside}]" if figure.beside else ""
    note = f"   ({figure.note})" if figure.note else ""
    return f"  {figure.name:<52} {number(figure.value):>12} {figure.unit}{verdict}{beside}{note}"


def _verdict(figure: Figure) -> str:
    return "HOLDS" if figure.holds else "DOES NOT HOLD"


def run_topic(
    topic: str, measure: Callable[[], Iterable[Figure]], show: Callable[[str], None]
) -> TopicResult:
    """Measure one; an error ends it and not the others."""
    date, started, machine = last_run.now(), time.monotonic(), last_run.machine()
    show(f"{topic}:")
    figures: list[Figure] = []
    failure = ""
    try:
        for figure in measure():
            figures.append(figure)
            show(line(figure))
    except Exception as error:  # noqa: BLE001 - the others are measured nevertheless
        traceback.print_exc()
        reason = str(error).strip().rpartition("\n")[2]  # of the output of another program the last line
        failure = f"{type(error).__name__}: {reason}"
        show(f"  FAILED: {failure}")
    seconds = time.monotonic() - started
    show(f"  took {seconds:.0f} s")
    return TopicResult(topic, figures, seconds, date, machine, failure)


def summary(results: Sequence[TopicResult]) -> str:
    broken = [f"{result.topic}: {figure.name}" for result in results for figure in result.broken]
    failed = [f"{result.topic}: {result.error}" for result in results if result.error]
    if not broken and not failed:
        return "every promise measured here holds"
    lines = [f"{len(broken)} promise(s) do not hold, {len(failed)} benchmark(s) failed:", *broken, *failed]
    return "\n  ".join(lines)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description=__doc__.partition("\n")[0])
    made.add_argument("topics", nargs="*", metavar="TOPIC", help=f"without any, all: {', '.join(TOPICS)}")
    made.add_argument("--json", action="store_true", help="print the results as one JSON document")
    made.add_argument(
        "--write",
        action=argparse.BooleanOptionalAction,
        help="write the results into docs/performance.md; by default if all topics are run",
    )
    return made


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    unknown = [topic for topic in options.topics if topic not in TOPICS]
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(TOPICS)}", file=sys.stderr)
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

    def show(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    results = [
        run_topic(topic, importlib.import_module(f"bench.{topic}").measure, show)
        for topic in options.topics or TOPICS
    ]
    show(summary(results))
    if options.json:
        print(json.dumps({"topics": [result.document() for result in results]}, indent=2))
    if options.write if options.write is not None else not options.topics:
        last_run.write(results, TOPICS)
    return 1 if any(result.broken or result.error for result in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
