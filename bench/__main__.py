"""`make bench`: run the benchmarks, print every figure, and say which promises hold.

`make bench ARGS="store"` runs one. Each module named in `TOPICS` has a `measure()` that yields figures. The
exit code is 1 if a promise does not hold, so that a script can tell; no test asserts a time.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time

import structlog

from bench.figures import Figure

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
    "neighbours",
    "continuum",
    "market",
    "floods",
    "names",
)


def line(figure: Figure) -> str:
    verdict = ""
    if figure.is_promise:
        bound = f">= {figure.at_least:g}" if figure.at_least is not None else f"<= {figure.at_most:g}"
        verdict = f"   promised {bound}: {'HOLDS' if figure.holds else 'DOES NOT HOLD'}"
    note = f"   ({figure.note})" if figure.note else ""
    return f"  {figure.name:<52} {figure.value:>12,.2f} {figure.unit}{verdict}{note}"


def main(chosen: list[str]) -> int:
    unknown = [topic for topic in chosen if topic not in TOPICS]
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(TOPICS)}", file=sys.stderr)
        return 2
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    broken: list[Figure] = []
    for topic in chosen or TOPICS:
        started = time.monotonic()
        print(f"{topic}:", flush=True)
        for figure in importlib.import_module(f"bench.{topic}").measure():
            print(line(figure), flush=True)
            if not figure.holds:
                broken.append(figure)
        print(f"  took {time.monotonic() - started:.0f} s", flush=True)
    print("every promise measured here holds" if not broken else f"{len(broken)} promise(s) do not hold")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
