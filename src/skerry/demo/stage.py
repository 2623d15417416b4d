"""What the steps of a demo share: the sites, the narrator, and the pace.

A step is a function that gets the stage, changes the cloud by commands that anybody could type, and yields
assertions: sentences about what was observed.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from skerry.client.api import JsonObject
from skerry.demo.load import Load, LoadSummary, function_call, page
from skerry.demo.narration import Assertion, Narrator, describe_load
from skerry.demo.sites import CLOUD, EDGES, REGISTRY, Site, Sites, wait_for_reply

SHOP: Final = "shop"
FUNCTION: Final = "recommend"
GOOD, BAD = "1", "2"
COPIES: Final = 3
WITHIN_S: Final = 120.0  # on a very busy machine; seconds elsewhere


class Pace(NamedTuple):
    """How long the demo shows something."""

    observe_s: float
    report_s: float  # between two lines of figures
    deadline_s: float  # of the update that fails


SLOW: Final = Pace(25.0, 5.0, 8.0)
FAST: Final = Pace(2.0, 1.0, 4.0)


def image(version: str) -> str:
    """The reference of a version of the application's image."""
    return f"{REGISTRY}/{SHOP}:{version}"


@dataclass(slots=True)
class Stage:
    """The running demo."""

    sites: Sites
    narrator: Narrator
    pace: Pace
    folder: Path

    def run(self, *arguments: str, site: Site = CLOUD, codes: tuple[int, ...] = (0,)) -> str:
        """Print a command, run it at a server, and print the end of its output; its standard output."""
        done = self._run(arguments, site, codes)
        self.narrator.output(done.stderr + done.stdout, most=4)
        return done.stdout

    def run_json(self, *arguments: str, site: Site = CLOUD) -> Any:
        """Print and run a command; its JSON."""
        return json.loads(self._run((*arguments, "-o", "json"), site, (0,)).stdout)

    def exit_code(self, *arguments: str, codes: tuple[int, ...]) -> int:
        """Print and run a command that may fail; its exit code."""
        done = self._run(arguments, CLOUD, codes)
        self.narrator.message((done.stderr or done.stdout).strip().splitlines()[-1])
        return done.returncode

    def _run(
        self, arguments: tuple[str, ...], site: Site, codes: tuple[int, ...]
    ) -> subprocess.CompletedProcess[str]:
        self.narrator.command(("skerry", *arguments), "" if site == CLOUD else site.name)
        return self.sites.run(site, *arguments, codes=codes)

    def get(self, *path: str, site: Site = CLOUD, **query: str) -> JsonObject:
        return self.sites.api(site).get(*path, **query)

    def service(self, name: str) -> JsonObject:
        return self.get("service", name)

    def wait(
        self, get: Callable[[], JsonObject], accept: Callable[[JsonObject], bool], what: str
    ) -> JsonObject:
        return wait_for_reply(get, accept, what, within_s=WITHIN_S)

    def wait_for_service(self, name: str, accept: Callable[[JsonObject], bool], what: str) -> JsonObject:
        return self.wait(lambda: self.service(name), accept, what)

    @contextmanager
    def load(self, *, calls: int = 1, pages: int = 1, pause_s: float = 0.25) -> Iterator[ObservedLoad]:
        """So many clients at every edge site, which call the function and request pages."""
        observed = ObservedLoad(self)
        address = str(self.service(SHOP)["address"])
        for site in EDGES:
            observed.calls.start(
                site.name, function_call(FUNCTION, {"user": 7}), clients=calls, pause_s=pause_s
            )
            observed.pages.start(site.name, page(address), clients=pages, pause_s=pause_s)
        try:
            yield observed
        finally:
            observed.stop()


class ObservedLoad:
    """Calls and pages of all edge sites, and their figures."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.calls = Load(stage.sites.edges)
        self.pages = Load(stage.sites.edges)
        self._began = time.monotonic()

    def observe(self, for_s: float | None = None) -> None:
        """Print figures for a while."""
        pace = self._stage.pace
        ends_at = time.monotonic() + (pace.observe_s if for_s is None else for_s)
        while (left_s := ends_at - time.monotonic()) > 0:
            time.sleep(min(left_s, pace.report_s))
            self.report()

    def observe_service(self, name: str, accept: Callable[[JsonObject], bool], what: str) -> JsonObject:
        """Print figures until a service is as expected; it."""
        due = time.monotonic() + self._stage.pace.report_s

        def accept_or_report(service: JsonObject) -> bool:
            nonlocal due
            if time.monotonic() >= due:
                due += self._stage.pace.report_s
                self.report()
            return accept(service)

        return self._stage.wait_for_service(name, accept_or_report, what)

    def report(self) -> None:
        """Print the figures so far."""
        seconds = time.monotonic() - self._began
        for load, unit in ((self.calls, "calls"), (self.pages, "pages")):
            if load.count():
                self._stage.narrator.figures(describe_load(load.summary(), unit, seconds))

    def stop(self) -> tuple[LoadSummary, LoadSummary]:
        """The figures of calls and pages, when every client has its answer."""
        return self.calls.stop(), self.pages.stop()


def nothing_lost(calls: LoadSummary, pages: LoadSummary) -> Assertion:
    """The assertion that every request of a load was answered."""
    lost = calls.lost + pages.lost
    counts = f"{calls.total} calls and {pages.total} pages" if pages.total else f"{calls.total} calls"
    text = f"none of {counts} was lost ({calls.retried + pages.retried} were tried again)"
    if lost:
        text += f": {lost} were, {dict(calls.problems) | dict(pages.problems)}"
    return Assertion(text, lost == 0 and calls.total > 0)
