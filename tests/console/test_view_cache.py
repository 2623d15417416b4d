"""Views that are shared: by the same caller alone, and not after a change."""

from __future__ import annotations

from itertools import count

from skerry.console.hub import ChangeHub, Topic
from skerry.console.view_cache import FRESH_S, ViewCache
from skerry.kit.clock import ManualClock
from skerry.model.callers import AuthMethod, Caller, Role

ADMIN = Caller(origin=AuthMethod.TOKEN, name="a", role=Role.ADMIN)
BOUND = Caller(origin=AuthMethod.TOKEN, name="a", role=Role.ADMIN, namespaces=("shop",))


def test_a_view_is_shared_until_something_changes_or_it_is_old() -> None:
    clock, numbers = ManualClock(), count()
    hub = ChangeHub(clock)
    cache: ViewCache[int] = ViewCache(hub, clock)
    assert [cache.get(ADMIN, lambda: next(numbers)) for _ in range(3)] == [0, 0, 0]
    hub.notify(Topic.NODES)
    assert cache.get(ADMIN, lambda: next(numbers)) == 1
    clock.advance(FRESH_S)
    assert cache.get(ADMIN, lambda: next(numbers)) == 2
    assert cache.get(BOUND, lambda: next(numbers)) == 3
    assert cache.get(ADMIN, lambda: next(numbers)) == 2
