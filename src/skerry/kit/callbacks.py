"""Lists of callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class CallbackList(Generic[P]):
    """Callbacks in the order in which they were added. One that raises stops those behind it."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[P, object]] = []

    def add(self, callback: Callable[P, object]) -> Callable[[], None]:
        """Call it from now on; the result ends that."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for callback in tuple(self._callbacks):  # a callback may add or remove others
            callback(*args, **kwargs)
