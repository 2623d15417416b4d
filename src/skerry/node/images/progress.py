"""Progress of pulls: counted where layers are fetched, reported to listeners at a limited rate.

A layer that several pulls wait for is counted once and reported to the listeners of each.
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
    """A listener that does nothing."""


class LayerCounter:
    """Progress of one layer."""

    def __init__(self, digest: Digest, total: int, state: str = "waiting") -> None:
        self._digest = digest
        self._total = total
        self._state = state
        self._bytes = total if state == "present" else 0
        self._watchers: list[Callable[[bool], None]] = []

    def watch(self, watcher: Callable[[bool], None]) -> None:
        """`watcher` is called at every change, with True if the state changed."""
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[bool], None]) -> None:
        self._watchers.remove(watcher)

    def become(self, state: str) -> None:
        if state == "pulling":
            self._bytes = 0
        self._state = state
        self._notify(True)

    def add(self, count: int) -> None:
        self._bytes += count
        self._notify(False)

    def snapshot(self) -> LayerProgress:
        return LayerProgress(self._digest, self._state, self._bytes, self._total)

    def _notify(self, is_new_state: bool) -> None:
        for watcher in self._watchers:
            watcher(is_new_state)


class PullTracker:
    """One pull in progress: its listeners, and images and layers that must not be collected meanwhile."""

    def __init__(self, reference: str, clock: Clock) -> None:
        self.reference = reference
        self.layers: set[Digest] = set()
        self.images: set[ImageId] = set()
        self._clock = clock
        self._counts: tuple[LayerCounter, ...] = ()
        self._message = ""
        self._listeners: list[OnProgress] = []
        self._notified_at = float("-inf")

    @contextmanager
    def reporting_to(self, listener: OnProgress) -> Iterator[None]:
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def report(self, message: str) -> None:
        """Report `message` at once."""
        self._message = message
        self._notify()

    def count(self, counts: Iterable[LayerCounter]) -> None:
        """Report the progress of these layers, too."""
        self.end()
        self._counts = tuple(counts)
        self._message = ""
        for count in self._counts:
            count.watch(self._changed)
        self._notify()

    def end(self) -> None:
        """Stop reporting layers."""
        for count in self._counts:
            count.unwatch(self._changed)
        self._counts = ()

    def _changed(self, is_new_state: bool) -> None:
        if is_new_state or self._clock.monotonic() - self._notified_at >= _EVERY_S:
            self._notify()

    def _notify(self) -> None:
        self._notified_at = self._clock.monotonic()
        layers = tuple(count.snapshot() for count in self._counts)
        progress = PullProgress(self.reference, self._message or describe(layers), layers)
        for listener in tuple(self._listeners):
            try:
                listener(progress)
            except Exception:  # a failing listener must not end the pull of others
                log.warning("progress.not_heard", reference=self.reference, exc_info=True)


def describe(layers: tuple[LayerProgress, ...]) -> str:
    """A line for people."""
    there = sum(layer.state in ("done", "present") for layer in layers)
    got, total = sum(layer.bytes for layer in layers), sum(layer.total for layer in layers)
    return f"{there} of {len(layers)} layers, {got / _MEGABYTE:.1f} of {total / _MEGABYTE:.1f} MB"
