"""How far pulls have come: counted where layers are fetched, told to whoever listens, not too often.

A layer that several pulls wait for is counted once and told to the listeners of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import structlog

from skerry.kit.clock import Clock
from skerry.model.ids import Digest
from skerry.model.images import ImageId, LayerProgress, PullProgress

log = structlog.get_logger(__name__)

OnProgress = Callable[[PullProgress], None]

_EVERY_S = 0.1
_MEGABYTE = 1e6


def ignore(progress: PullProgress) -> None:
    """For callers that do not care."""


class LayerCounter:
    """One layer on its way here."""

    def __init__(self, digest: Digest, total: int, state: str = "waiting") -> None:
        self._digest = digest
        self._total = total
        self._state = state
        self._bytes = total if state == "present" else 0
        self._watchers: list[Callable[[bool], None]] = []

    def watch(self, watcher: Callable[[bool], None]) -> None:
        """`watcher` is called at every change, with True if it is one of state."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[bool], None]) -> None:
        self._watchers.remove(watcher)

    def become(self, state: str) -> None:
        if state == "pulling":
            self._bytes = 0
        self._state = state
        self._tell(True)

    def add(self, count: int) -> None:
        self._bytes += count
        self._tell(False)

    def snapshot(self) -> LayerProgress:
        return LayerProgress(self._digest, self._state, self._bytes, self._total)

    def _tell(self, is_new_state: bool) -> None:
        for watcher in self._watchers:
            watcher(is_new_state)


class PullTracker:
    """One pull under way: who listens, and what it counts on and must not be collected meanwhile."""

    def __init__(self, reference: str, clock: Clock) -> None:
        self.reference = reference
        self.layers: set[Digest] = set()
        self.images: set[ImageId] = set()
        self._clock = clock
        self._counts: tuple[LayerCounter, ...] = ()
        self._message = ""
        self._listeners: list[OnProgress] = []
        self._told_at = float("-inf")

    @contextmanager
    def heard_by(self, listener: OnProgress) -> Iterator[None]:
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @property
    def is_wanted(self) -> bool:
        return bool(self._listeners)

    def say(self, message: str) -> None:
        """Tell `message` at once."""
        self._message = message
        self._tell()

    def count(self, counts: Iterable[LayerCounter]) -> None:
        """From now on tell of these layers, too."""
        self.end()
        self._counts = tuple(counts)
        self._message = ""
        for count in self._counts:
            count.watch(self._changed)
        self._tell()

    def end(self) -> None:
        """Tell of no layers any more."""
        for count in self._counts:
            count.unwatch(self._changed)
        self._counts = ()

    def _changed(self, is_new_state: bool) -> None:
        if is_new_state or self._clock.monotonic() - self._told_at >= _EVERY_S:
            self._tell()

    def _tell(self) -> None:
        self._told_at = self._clock.monotonic()
        layers = tuple(count.snapshot() for count in self._counts)
        told = PullProgress(self.reference, self._message or describe(layers), layers)
        for listener in tuple(self._listeners):
            try:
                listener(told)
            except Exception:  # one who cannot listen must not end the pull of others
                log.warning("progress.not_heard", reference=self.reference, exc_info=True)


def describe(layers: tuple[LayerProgress, ...]) -> str:
    """A line for people."""
    there = sum(layer.state in ("done", "present") for layer in layers)
    got, total = sum(layer.bytes for layer in layers), sum(layer.total for layer in layers)
    return f"{there} of {len(layers)} layers, {got / _MEGABYTE:.1f} of {total / _MEGABYTE:.1f} MB"
