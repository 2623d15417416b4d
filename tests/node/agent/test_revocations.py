"""The list of revoked certificates on a node: heard, kept, forgotten when they expire, never lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.callers import RevokedCertificate
from skerry.model.node_messages import RevocationUpdate
from skerry.node.agent.revocations import RevocationList

DAY_S = 86_400.0
clock = ManualClock()


def revoked(serial: str, lives_s: float = DAY_S) -> RevokedCertificate:
    return RevokedCertificate(serial, clock.now() + lives_s)


async def receive(known: RevocationList, *serials: str) -> None:
    await known.add(RevocationUpdate(tuple(revoked(serial) for serial in serials)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "revoked.json"


def refused(known: RevocationList, *serials: str) -> list[str]:
    return [serial for serial in serials if known.is_revoked(serial)]


async def test_what_was_heard_is_refused_also_after_a_restart(file: Path) -> None:
    known = RevocationList(file, clock)
    await receive(known, "a")
    await receive(known, "b")
    for each in (known, RevocationList(file, clock)):
        assert refused(each, "a", "b", "c") == ["a", "b"]


async def test_a_server_that_has_not_heard_of_a_revocation_yet_does_not_undo_it(file: Path) -> None:
    known = RevocationList(file, clock)
    await receive(known, "a", "b")
    await receive(known, "b")
    await receive(known)
    for each in (known, RevocationList(file, clock)):
        assert refused(each, "a", "b") == ["a", "b"]


async def test_listeners_hear_of_further_ones_at_once_and_of_nothing_else(file: Path) -> None:
    known = RevocationList(file, clock)
    seen: list[list[str]] = []
    known.listen(lambda: seen.append(refused(known, "a", "b")))
    await receive(known, "a")
    await receive(known, "a")
    await receive(known, "b")
    await receive(known, "b")
    assert seen == [["a"], ["a", "b"]]


async def test_those_that_have_expired_are_forgotten(file: Path) -> None:
    clock = ManualClock()
    known = RevocationList(file, clock)
    await known.add(RevocationUpdate((RevokedCertificate("a", clock.now() + 60),)))
    clock.advance(2 * DAY_S)
    await known.add(RevocationUpdate((RevokedCertificate("b", clock.now() + 60),)))
    assert refused(known, "a", "b") == ["b"]
    assert b'"a"' not in file.read_bytes()


async def test_a_list_that_could_not_be_written_is_written_the_next_time(file: Path) -> None:
    known = RevocationList(file, clock)
    file.parent.rename(file.parent.with_name("away"))
    with pytest.raises(OSError, match="No such file"):
        await receive(known, "a")
    assert known.is_revoked("a")
    await asyncio.to_thread(file.parent.with_name("away").rename, file.parent)
    await receive(known, "a")
    assert RevocationList(file, clock).is_revoked("a")


def test_a_damaged_list_lets_nobody_in_by_being_taken_for_an_empty_one(file: Path) -> None:
    file.write_bytes(b"{")
    with pytest.raises(errors.FailedPrecondition, match=r"is damaged.* remove it"):
        RevocationList(file, clock)
