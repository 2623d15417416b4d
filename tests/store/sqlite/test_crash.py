"""`kill -9` of the writer at random points: what was acknowledged is there, nothing is half there."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.kit.clock import ManualClock
from skerry.store.sqlite.store import SqliteStore
from tests.store.sqlite.crash_writer import HISTORY, KEPT, WRITERS
from tests.support.waiting import PATIENCE_S

ROUNDS = 150


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.store.sqlite.crash_writer", str(tmp_path / "store.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


class Acknowledged:
    """What the writers were told."""

    def __init__(self) -> None:
        self.numbers = [0] * WRITERS
        self.revision = 0

    def note(self, line: bytes) -> None:
        _, writer, number, revision = line.split()
        assert int(number) == self.numbers[int(writer)] + 1
        self.numbers[int(writer)] = int(number)
        self.revision = max(self.revision, int(revision))


def run_and_kill(process: subprocess.Popen[bytes], acknowledged: Acknowledged, chance: random.Random) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"go\n")
    pid = int(process.stdout.readline().split()[1])
    # Sometimes before the first commit or while opening, sometimes after a fold or a checkpoint.
    for _ in range(chance.choice([0, 0, 1, 5, 20, 60, 120])):
        acknowledged.note(process.stdout.readline())
    for _ in range(chance.randrange(20_000)):
        pass  # a moment of chance length, far shorter than any sleep
    os.kill(pid, signal.SIGKILL)
    while (line := process.stdout.readline()) != b"done\n":
        acknowledged.note(line)


async def check(path: Path, acknowledged: Acknowledged) -> None:
    """Compare the file with what was acknowledged, then take over what is there as the new truth."""
    store = await SqliteStore.open(path, ManualClock(), history=HISTORY)
    try:
        found = {entry.key: entry.value for entry in (await store.range("")).entries}
        revision = await store.revision()
    finally:
        await store.close()
    for writer in range(WRITERS):
        number = int(found.pop(f"one/{writer}", b"0"))
        assert number in (acknowledged.numbers[writer], acknowledged.numbers[writer] + 1)
        assert int(found.pop(f"two/{writer}", b"0")) == number
        wanted = [f"log/{writer}/{n:08}" for n in range(max(1, number - KEPT + 1), number + 1)]
        assert sorted(key for key in found if key.startswith(f"log/{writer}/")) == wanted
        for key in wanted:
            assert int(found.pop(key).rstrip(b".")) == int(key.rpartition("/")[2])
        acknowledged.numbers[writer] = number
    newest = found.pop("newest", None)
    if newest is not None:
        writer, number = map(int, newest.split())
        assert acknowledged.numbers[writer] == number
    assert found == {}
    # One revision for each transaction, none used twice, none lost.
    assert revision == sum(acknowledged.numbers)
    assert revision >= acknowledged.revision


@pytest.mark.timeout(900)
async def test_killing_the_writer_loses_nothing_acknowledged_and_halves_nothing(
    writer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    chance = random.Random(20261115)
    acknowledged = Acknowledged()
    for _ in range(ROUNDS):
        run_and_kill(writer, acknowledged, chance)
        await check(tmp_path / "store.db", acknowledged)
    assert sum(acknowledged.numbers) > ROUNDS
