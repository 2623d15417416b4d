"""The three backends behind one fixture, and the one etcd that all tests of a run share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import uvloop

from skerry.kit.clock import ManualClock
from skerry.model.settings import StoreSettings
from skerry.store.etcd import EtcdStore
from skerry.store.memory import MemoryStore
from skerry.store.protocol import Store
from skerry.store.sqlite import SqliteStore
from tests.support.etcd import EtcdServer

_numbers = itertools.count()


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()


class Backend:
    """One kind of store. Every `open` after the first finds what was there, except in memory."""

    def __init__(self, name: str, folder: Path, server: EtcdServer) -> None:
        self.name = name
        self.clock = ManualClock()
        self._path = folder / "store.db"
        self._server = server
        self._prefix = f"/test-{next(_numbers)}/"
        self._opened: list[Store] = []

    async def open(self, *, history: int = 10_000) -> Store:
        store: Store
        if self.name == "memory":
            store = MemoryStore(self.clock, history=history)
        elif self.name == "sqlite":
            store = await SqliteStore.open(self._path, self.clock, history=history)
        else:
            settings = StoreSettings(etcd_prefix=self._prefix, timeout_s=20.0)
            store = await EtcdStore.open([self._server.address], settings, tls=False)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture(params=["memory", "sqlite", "etcd"])
async def backend(
    request: pytest.FixtureRequest, tmp_path: Path, etcd_server: EtcdServer
) -> AsyncIterator[Backend]:
    made = Backend(request.param, tmp_path, etcd_server)
    yield made
    await made.close()


@pytest.fixture
async def store(backend: Backend) -> Store:
    return await backend.open()


@pytest.fixture(scope="session")
def warm_uvloop() -> None:
    """libuv makes one pipe for signals when its first loop starts, and keeps it as long as the process."""
    uvloop.run(asyncio.sleep(0))
