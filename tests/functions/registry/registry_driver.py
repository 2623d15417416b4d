"""A registry in a process of its own that is killed, as by `kill -9`, when it reaches a step the Nth time.

    python -m tests.functions.registry.registry_driver FOLDER STEP TIMES

It creates, updates and deletes one function, and says each that is done.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import structlog

from skerry.kit.clock import SystemClock
from skerry.store.sqlite.store import SqliteStore
from tests.functions.registry.registries import OTHER, Ground, hello


class Death:
    """Counts one step, and dies of it."""

    def __init__(self, step: str, times: int) -> None:
        self.step = step
        self.left = times

    def __call__(self, step: str) -> None:
        self.left -= step == self.step
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(folder: Path, step: str, times: int) -> None:
    store = await SqliteStore.open(folder / "store.db", SystemClock())
    ground = Ground(folder / "code", store, SystemClock())
    async with ground.registry(Death(step, times)) as functions:
        await functions.create(hello(), actor="ann")
        os.write(1, b"create\n")
        await functions.update(hello(code=OTHER), actor="ann")
        os.write(1, b"update\n")
        await functions.delete("hello", actor="ann")
        os.write(1, b"delete\n")
        await functions.collect(set())
    await store.close()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
