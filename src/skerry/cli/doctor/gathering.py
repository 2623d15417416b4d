"""Runs gatherers of facts at the same time, each within a deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Gathered(NamedTuple):
    """Facts by the names of their gatherers, and why others are missing."""

    facts: dict[str, Any]
    failures: dict[str, str]


def gather(gatherers: Mapping[str, Callable[[], Any]], within_s: float) -> Gathered:
    """What each returns within the time. One that raises or is late is a failure, and holds up nobody: its
    thread ends with the process."""
    done: queue.SimpleQueue[tuple[str, Any, str]] = queue.SimpleQueue()

    def run(name: str, gatherer: Callable[[], Any]) -> None:
        try:
            done.put((name, gatherer(), ""))
        except Exception as error:  # noqa: BLE001 - one check that breaks must not hide the others
            done.put((name, None, f"{type(error).__name__}: {error}"))

    for name, gatherer in gatherers.items():
        threading.Thread(target=run, args=(name, gatherer), name=f"doctor-{name}", daemon=True).start()
    facts: dict[str, Any] = {}
    failures = dict.fromkeys(gatherers, f"it took longer than {within_s:g} s")
    deadline = time.monotonic() + within_s
    while len(facts) < len(gatherers):
        try:
            name, value, failure = done.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        facts[name] = value
        failures[name] = failure
    failures = {name: failure for name, failure in failures.items() if failure}
    return Gathered({name: value for name, value in facts.items() if name not in failures}, failures)
