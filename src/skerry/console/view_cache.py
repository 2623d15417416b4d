"""Views that many open pages of the same caller ask for at about the same time are made once.

A view is shared while nothing has changed, and for two seconds at most: figures that nodes report change
without a notification.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from skerry.console.hub import ChangeHub
from skerry.kit.clock import Clock
from skerry.model.callers import Caller

T = TypeVar("T")

FRESH_S = 2.0
_MAX_CALLERS = 64


class ViewCache(Generic[T]):
    """Views of one page, by caller: what one may see is never shown to another."""

    def __init__(self, hub: ChangeHub, clock: Clock) -> None:
        self._hub = hub
        self._clock = clock
        self._views: dict[Caller, tuple[T, float, int]] = {}

    def get(self, caller: Caller, make: Callable[[], T]) -> T:
        """The view of this caller, made now unless it was just made."""
        now = self._clock.monotonic()
        found = self._views.get(caller)
        if found is not None and now - found[1] < FRESH_S and found[2] == self._hub.changes:
            return found[0]
        if len(self._views) >= _MAX_CALLERS:
            self._views.clear()
        changes = self._hub.changes
        view = make()
        self._views[caller] = view, now, changes
        return view
