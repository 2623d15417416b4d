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
from skerry.store.etcd.store import EtcdStore
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Store
from skerry.store.sqlite.store import SqliteStore
from tests.support.etcd import EtcdServer

_numbers = itertools.count()


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who asks for etcd gets it first, before what a test may leave is counted; others do not start it."""
    for item in items:
        if isinstance(item, pytest.Function) and uses_etcd(item):
            item.fixturenames = ["etcd_server", *item.fixturenames]


def uses_etcd(item: pytest.Function) -> bool:
    return hasattr(item, "callspec") and item.callspec.params.get("backend") == "etcd"


class Backend:
    """One kind of store. Every `open` after the first finds what was there, except in memory."""

    def __init__(self, name: str, folder: Path, server: EtcdServer | None) -> None:
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
            assert self._server is not None
            store = await EtcdStore.open([self._server.address], settings, tls=False)
        self._opened.append(store)
        return store

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture(params=["memory", "sqlite", "etcd"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    server = request.getfixturevalue("etcd_server") if request.param == "etcd" else None
    made = Backend(request.param, tmp_path, server)
    yield made
    await made.close()


@pytest.fixture
async def store(backend: Backend) -> Store:
    return await backend.open()


@pytest.fixture(scope="session")
def warm_uvloop() -> None:
    """libuv makes one pipe for signals when its first loop starts, and keeps it as long as the process."""
    uvloop.run(asyncio.sleep(0))
