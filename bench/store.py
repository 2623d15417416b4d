"""How many durable transactions the SQLite store makes, against raw single-statement commits of sqlite3.

Raw and ours take turns in short rounds on the same disk, and each figure is the median of its rounds, so that
what else the machine does falls on both.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from bench.figures import Figure
from skerry.kit.clock import SystemClock
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Put, Store
from skerry.store.sqlite.store import SqliteStore

ROUNDS = 8
ROUND_S = 0.6
WRITERS = 64
KEYS = 4096
VALUE = b"x" * 200


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        raw, alone, together, memory = uvloop.run(_rounds(Path(folder)))
    yield Figure("raw sqlite3, one statement a commit", raw, "durable commits/s")
    yield Figure("one writer", alone, "durable transactions/s", note=f"{alone / raw:.2f} of raw")
    yield Figure(f"{WRITERS} writers", together, "durable transactions/s")
    yield Figure(
        f"{WRITERS} writers against raw",
        together / raw,
        "x raw commits",
        at_least=2.0,
        peer=raw,
        peer_unit="commits/s",
        peer_name="raw sqlite3",
    )
    yield Figure("one transaction above its commit, one writer", (1 / alone - 1 / raw) * 1e6, "us")
    yield Figure(f"one transaction with its share of the commit, {WRITERS} writers", 1e6 / together, "us")
    yield Figure("one transaction without a disk (memory store)", 1e6 / memory, "us")


async def _rounds(folder: Path) -> tuple[float, float, float, float]:
    connection = _raw_connection(folder / "raw.db")
    store = await SqliteStore.open(folder / "store.db", SystemClock())
    memory = MemoryStore(SystemClock())
    try:
        rates = [
            (
                _raw_round(connection),
                await _round(store, 1),
                await _round(store, WRITERS),
                await _round(memory, 1, ROUND_S / 4),
            )
            for _ in range(ROUNDS)
        ]
    finally:
        await memory.close()
        await store.close()
        connection.close()
    raw, alone, together, plain = (statistics.median(column) for column in zip(*rates, strict=True))
    return raw, alone, together, plain


def _raw_connection(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, value BLOB)")
    return connection


def _raw_round(connection: sqlite3.Connection) -> float:
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < ROUND_S:
        connection.execute("INSERT INTO entry (value) VALUES (?)", (VALUE,))
        done += 1
    return done / elapsed


async def _round(store: Store, writers: int, seconds: float = ROUND_S) -> float:
    started = time.perf_counter()
    done = 0

    async def write(writer: int) -> None:
        nonlocal done
        number = writer
        while time.perf_counter() - started < seconds:
            await store.commit([Put(f"bench/{number % KEYS:08}", VALUE)])
            number += writers
            done += 1

    await asyncio.gather(*(write(writer) for writer in range(writers)))
    return done / (time.perf_counter() - started)
