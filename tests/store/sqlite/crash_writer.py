"""What `test_crash` kills: writers that say what was acknowledged, forked from a warm parent.

`python -m tests.store.sqlite.crash_writer FILE`: for every line on standard input it forks a child that
prints `pid PID` and then `ack WRITER NUMBER REVISION` for every transaction that returned, until it is
killed; then the parent prints `done`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from skerry.kit.clock import SystemClock
from skerry.store.protocol import Delete, Op, Put
from skerry.store.sqlite.store import SqliteStore

WRITERS = 8
KEPT = 3  # entries of each writer's log
HISTORY = 100  # short, so that folding happens in the middle of it too
VALUE = b"." * 1500


def transaction(writer: int, number: int) -> list[Op]:
    """Five keys that are only ever right together."""
    text = str(number).encode()
    return [
        Put(f"one/{writer}", text),
        Put(f"two/{writer}", text),
        Put(f"log/{writer}/{number:08}", text + VALUE),
        Delete(f"log/{writer}/{number - KEPT:08}"),
        Put("newest", f"{writer} {number}".encode()),
    ]


async def write_for_ever(path: Path) -> None:
    store = await SqliteStore.open(path, SystemClock(), history=HISTORY)

    async def write(writer: int) -> None:
        entry = await store.get(f"one/{writer}")
        number = int(entry.value) if entry is not None else 0
        while True:
            number += 1
            revision = await store.commit(transaction(writer, number))
            os.write(1, f"ack {writer} {number} {revision}\n".encode())

    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))


def main(path: Path) -> None:
    for _ in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            os.write(1, f"pid {os.getpid()}\n".encode())
            asyncio.run(write_for_ever(path))
        os.waitpid(pid, 0)
        os.write(1, b"done\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
