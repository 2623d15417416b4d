"""A registry in a process of its own that is killed, as by `kill -9`, when it reaches a step the Nth time.

Its arguments are FOLDER STEP TIMES. See `tests.support.drivers`.

It creates, updates and deletes one function, and says each that is done.
"""

from __future__ import annotations

import os
from pathlib import Path

from skerry.kit.clock import SystemClock
from skerry.store.sqlite.store import SqliteStore
from tests.functions.registry.registries import OTHER, Ground, hello
from tests.support.drivers import Death


async def main(path: str, step: str, times: str) -> None:
    folder = Path(path)
    store = await SqliteStore.open(folder / "store.db", SystemClock())
    ground = Ground(folder / "code", store, SystemClock())
    async with ground.registry(Death(step, int(times))) as functions:
        await functions.create(hello(), actor="ann")
        os.write(1, b"create\n")
        await functions.update(hello(code=OTHER), actor="ann")
        os.write(1, b"update\n")
        await functions.delete("hello", actor="ann")
        os.write(1, b"delete\n")
        await functions.collect(set())
    await store.close()
