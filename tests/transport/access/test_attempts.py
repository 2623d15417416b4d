"""Guesses of credentials: a source that fails again and again waits, and others do not."""

from __future__ import annotations

import pytest

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.callers import ANONYMOUS, AuthMethod, Caller, Role
from skerry.transport.access import attempts
from skerry.transport.access.attempts import AttemptLimit, LimitedGate, source_of
from skerry.transport.access.peers import ConnectionPeer

GUESSER, OTHER = ConnectionPeer("192.0.2.7"), ConnectionPeer("192.0.2.8")
KNOWN = Caller(AuthMethod.TOKEN, "token:x", Role.INVOKER, token="x")


class OneToken:
    """A gate that knows the tokens in `valid`."""

    def __init__(self) -> None:
        self.valid = {"Bearer good", "Bearer better"}

    def caller(self, peer: ConnectionPeer, authorization: str | None, *, is_forwarded: bool) -> Caller:
        if authorization is None:
            return ANONYMOUS
        if authorization == "Bearer old":
            raise errors.Unavailable("not known")
        if authorization not in self.valid:
            raise errors.Unauthenticated("wrong")
        return KNOWN


class Listener:
    def __init__(self) -> None:
        self.clock, self.inner = ManualClock(), OneToken()
        self.gate = LimitedGate(self.inner, self.clock.monotonic)

    def show(self, authorization: str | None, peer: ConnectionPeer = GUESSER) -> Caller:
        return self.gate.caller(peer, authorization, is_forwarded=False)

    def guess(self, times: int) -> None:
        for number in range(times):
            with pytest.raises(errors.Unauthenticated):
                self.show(f"Bearer guess {number}")


def test_a_source_with_too_many_failures_waits_and_then_has_one_more_try() -> None:
    listener = Listener()
    listener.guess(int(attempts.MAX_FAILURES))
    for token in ("Bearer guess", "Bearer good"):
        with pytest.raises(errors.Overloaded) as refused:
            listener.show(token)
    assert refused.value.retry_after_s == pytest.approx(5.0)
    assert listener.show("Bearer good", OTHER) == KNOWN
    listener.clock.advance(5.0)
    assert listener.show("Bearer better") == KNOWN
    listener.guess(1)
    with pytest.raises(errors.Overloaded):
        listener.show("Bearer guess")


def test_a_token_that_was_accepted_passes_until_it_is_invalid() -> None:
    listener = Listener()
    assert listener.show("Bearer good", OTHER) == KNOWN
    listener.guess(int(attempts.MAX_FAILURES))
    assert listener.show("Bearer good") == KNOWN
    listener.inner.valid.clear()
    with pytest.raises(errors.Unauthenticated):
        listener.show("Bearer good")
    with pytest.raises(errors.Overloaded):
        listener.show("Bearer good")


def test_requests_without_credentials_and_other_refusals_are_no_guesses() -> None:
    listener = Listener()
    for _ in range(100):
        assert listener.show(None) == ANONYMOUS
        with pytest.raises(errors.Unavailable):
            listener.show("Bearer old")
    assert listener.show("Bearer good") == KNOWN


def test_failures_are_forgiven_and_sources_forgotten() -> None:
    clock = ManualClock()
    limit = AttemptLimit(clock.monotonic)
    for number in range(10_000):
        limit.fail(f"10.0.{number // 256}.{number % 256}")
    assert len(limit._failures) <= 4096
    for _ in range(50):
        limit.fail("a")
    assert limit.wait_s("a") == pytest.approx(5.0)
    clock.advance(100.0)
    assert limit.wait_s("a") == 0.0
    assert "a" not in limit._failures


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_a_host_of_ipv6_is_its_network(address: str, source: str) -> None:
    assert source_of(ConnectionPeer(address)) == source
