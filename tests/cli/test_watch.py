"""Asking a server again and again, also over a time in which it does not answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest

from skerry.cli import watch
from skerry.client.errors import ServerUnreachable


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SOON_S", "_IDLE_S"):
        monkeypatch.setattr(watch, name, 0.001)


def answers(*given: int | None) -> Callable[[], int]:
    """A server that answers so, and does not at None."""
    left = iter(given)

    def read() -> int:
        answer = next(left)
        if answer is None:
            raise ServerUnreachable("Nothing answers.")
        return answer

    return read


def test_a_server_that_is_away_for_a_moment_is_waited_for() -> None:
    assert list(islice(watch.poll_forever(answers(1, None, None, 2, 3)), 3)) == [1, 2, 3]


def test_whoever_waits_for_a_server_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    list(islice(watch.poll_forever(answers(1, None, None, 2)), 2))
    assert capsys.readouterr().err == "Nothing answers. Retrying for 30 s.\n"


def test_a_server_that_is_not_there_at_first_is_not_waited_for() -> None:
    with pytest.raises(ServerUnreachable):
        next(watch.poll_forever(answers(None, 1)))


def test_a_server_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_PATIENCE_S", -1.0)
    seen = watch.poll_forever(answers(1, None, 2))
    assert next(seen) == 1
    with pytest.raises(ServerUnreachable):
        next(seen)
