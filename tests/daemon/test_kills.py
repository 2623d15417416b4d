"""The short version of `make soak ARGS=kills`, and that what the campaign is there to find would be found."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.soak import kills
from bench.soak.cluster import KINDS
from bench.soak.witness import Witness

from tests.support.waiting import eventually_sync

SEED = 14


@pytest.fixture
def witness() -> Iterator[Witness]:
    made = Witness("127.0.0.1", overlap_s=0.1)
    yield made
    made.close()


@pytest.mark.root
@pytest.mark.timeout(900)  # many processes are started one after the other, on a machine that may be busy
def test_whatever_is_killed_nothing_is_lost_doubled_or_left_behind(tmp_path: Path) -> None:
    assert kills.campaign(tmp_path, count=12, seed=SEED) == []


def test_a_seed_always_plans_the_same_kills_and_every_kind_about_as_often() -> None:
    planned = [kind for burst in kills.plan(SEED, 200) for kind in burst]
    assert planned == [kind for burst in kills.plan(SEED, 200) for kind in burst]
    assert planned != [kind for burst in kills.plan(SEED + 1, 200) for kind in burst]
    counts = Counter(planned)
    assert counts.keys() == set(KINDS)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_the_witness_counts_a_call_as_often_as_it_runs(witness: Witness) -> None:
    for _ in range(2):
        with socket.create_connection(witness.address) as call:
            call.sendall(b"call twice\n")
            assert call.recv(1)
    assert witness.calls == {"twice": 2}


def test_the_witness_tells_two_copies_at_once_from_one_after_the_other(witness: Witness) -> None:
    def dial() -> socket.socket:
        return undo.enter_context(socket.create_connection(witness.address))

    with contextlib.ExitStack() as undo:
        first = dial()
        first.sendall(b"copy restarted\n")
        eventually_sync(lambda: witness.copies("restarted") == 1)
        first.close()
        eventually_sync(lambda: witness.copies("restarted") == 0)
        second, *both = dial(), dial(), dial()

        def is_seen() -> bool:
            second.sendall(b"copy restarted\n")
            for copy in both:
                copy.sendall(b"copy doubled\n")
            return bool(witness.doubled)

        eventually_sync(is_seen)
        assert witness.doubled == {"doubled"}
        assert [witness.copies(name) for name in witness.living()] == [2, 1]
    eventually_sync(lambda: witness.living() == [])
