"""Counts that protect the server: things open at once, and failures in a while.

In memory and per process; nothing here waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from skerry.kit.clock import Clock
from skerry.model import errors

_TENANT_SHARE = 4  # a tenant gets one in so many


class ConcurrencyLimit:
    """At most `limit` at once, and at most `each` of them for one name; the empty name may have all."""

    def __init__(self, limit: int, noun: str, *, each: int | None = None) -> None:
        self._limit = limit
        self._noun = noun
        self._each = limit if each is None else each
        self._of: dict[str, int] = {}
        self.taken = 0

    def take(self, name: str = "") -> AbstractContextManager[None]:
        """A slot, taken now and released with the context; `Overloaded` if there is none."""
        if self.taken >= self._limit:
            raise self._full(self._limit, "")
        mine = self._of.get(name, 0)
        if name and mine >= self._each:
            raise self._full(self._each, " of yours")
        self._of[name] = mine + 1
        self.taken += 1
        return self._hold(name)

    def _full(self, limit: int, owner: str) -> errors.Overloaded:
        return errors.Overloaded(
            f"{limit} {self._noun}{owner} are open, which is the limit; close one or try again later",
            retry_after_s=5.0,
        )

    @contextmanager
    def _hold(self, name: str) -> Iterator[None]:
        try:
            yield
        finally:
            self.taken -= 1
            self._of[name] -= 1
            if not self._of[name]:
                del self._of[name]


def shared_limit(limit: int, noun: str) -> ConcurrencyLimit:
    """A limit that tenants share, named by `Caller.tenant`: one of them gets a quarter at most, and cannot
    keep the others out."""
    return ConcurrencyLimit(limit, noun, each=max(1, limit // _TENANT_SHARE))


class FailureLimit:
    """Who failed too often is made to wait: guessing secrets must not be worth the time."""

    def __init__(
        self, clock: Clock, *, allowed: int = 10, window_s: float = 60.0, max_sources: int = 4096
    ) -> None:
        self._clock = clock
        self._allowed = allowed
        self._window_s = window_s
        self._max_sources = max_sources
        self._times: dict[str, deque[float]] = {}

    def check(self, source: str) -> None:
        """Raise `Overloaded` if `source` has failed as often as it may."""
        times = self._recent(source)
        if len(times) >= self._allowed:
            wait_s = times[0] + self._window_s - self._clock.monotonic()
            raise errors.Overloaded(
                f"{self._allowed} attempts from {source or 'this address'} have failed within "
                f"{self._window_s:g} s; wait {wait_s:.0f} s, and look at what the failures said",
                retry_after_s=wait_s,
            )

    def note(self, source: str) -> None:
        """One more failure of `source`."""
        times = self._recent(source)
        times.append(self._clock.monotonic())
        self._times.pop(source, None)
        self._times[source] = times  # the dict is in the order of the last failure
        while len(self._times) > self._max_sources:
            del self._times[next(iter(self._times))]

    def _recent(self, source: str) -> deque[float]:
        times = self._times.get(source, deque())
        since = self._clock.monotonic() - self._window_s
        while times and times[0] <= since:
            times.popleft()
        return times
