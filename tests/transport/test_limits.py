"""Counts that protect the server."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.callers import ANONYMOUS, AuthMethod, Caller, Role
from skerry.model.ids import Namespace
from skerry.transport.limits import ConcurrencyLimit, FailureLimit, shared_limit


def test_slots_are_given_back_when_they_are_left_even_with_an_error() -> None:
    slots = ConcurrencyLimit(1, "things")
    with pytest.raises(ZeroDivisionError), slots.take():
        raise ZeroDivisionError
    with slots.take(), pytest.raises(errors.Overloaded, match="1 things"):
        slots.take()
    assert slots.taken == 0


def test_one_name_does_not_get_all_slots() -> None:
    slots = ConcurrencyLimit(3, "things", each=2)
    with slots.take("a"), slots.take("a"):
        with pytest.raises(errors.Overloaded, match="2 things of yours"):
            slots.take("a")
        with slots.take("b"), pytest.raises(errors.Overloaded, match="3 things are open"):
            slots.take("c")
    with slots.take("a"):
        assert slots.taken == 1


def test_a_tenant_does_not_keep_others_out_with_any_number_of_tokens() -> None:
    def caller(token: str, *namespaces: str) -> Caller:
        return Caller(
            AuthMethod.TOKEN, token, Role.VIEWER, token=token, namespaces=tuple(map(Namespace, namespaces))
        )

    slots = shared_limit(8, "things")
    with slots.take(caller("a", "shop", "web").tenant), slots.take(caller("b", "web", "shop").tenant):
        with pytest.raises(errors.Overloaded, match="2 things of yours"):
            slots.take(caller("c", "shop", "web").tenant)
        with slots.take(caller("d", "lab").tenant), ExitStack() as unbound:
            for _ in range(5):  # who is bound to nothing may have all that is left
                unbound.enter_context(slots.take(ANONYMOUS.tenant))
            with pytest.raises(errors.Overloaded, match="8 things are open"):
                slots.take(caller("d", "lab").tenant)


def test_whoever_fails_too_often_waits_until_the_first_failure_is_old() -> None:
    clock = ManualClock()
    failures = FailureLimit(clock, allowed=2, window_s=60)
    failures.note("a")
    clock.advance(20)
    failures.check("a")
    failures.note("a")
    with pytest.raises(errors.Overloaded) as refused:
        failures.check("a")
    assert refused.value.retry_after_s == pytest.approx(40)
    failures.check("b")
    clock.advance(40)
    failures.check("a")


def test_failures_are_remembered_of_only_so_many_sources() -> None:
    failures = FailureLimit(ManualClock(), allowed=1, max_sources=3)
    for source in "abcd":
        failures.note(source)
    failures.check("a")  # forgotten, as the one that failed longest ago
    for source in "bcd":
        with pytest.raises(errors.Overloaded):
            failures.check(source)
