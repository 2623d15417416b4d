"""A registry on a store in memory, with events that are only noted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from skerry.functions.continuum.policies.loading import load_policy
from skerry.functions.qos import DEFAULT_CLASSES
from skerry.functions.registry.registry import FunctionRegistry, NewFunction
from skerry.kit import json_codec, tasks
from skerry.kit.clock import Clock, ManualClock
from skerry.model.ids import Digest
from skerry.model.resources import Megabytes, Millicores, Resources
from skerry.model.settings import FunctionSettings
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Put, Store
from tests.functions.registry import tarballs

HELLO = tarballs.of(hello=tarballs.HELLO)
OTHER = tarballs.of(hello="def handler(params): return 'other'\n")


class Events:
    """Writes events as the event log does, and remembers them."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str, dict[str, str]]] = []

    def put(self, kind: str, subject: str, *, actor: str, reason: str = "", **data: str) -> Put:
        self.told.append((kind, subject, actor, data))
        return Put(f"event/{len(self.told)}", json_codec.encode([kind, subject, actor, data]))


def hello(name: str = "hello", **fields: object) -> NewFunction:
    given = {"runtime": "python310", "memory": 128, "handler": "hello.handler", "code": HELLO, **fields}
    return NewFunction(name, **given)  # type: ignore[arg-type] - fields of whatever type a test tries


class Ground:
    """What outlives a registry: the store, the folder, and what workers use."""

    def __init__(self, folder: Path, store: Store | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.store = store or MemoryStore(self.clock)
        self.folder = folder
        self.events = Events()
        self.in_use: set[Digest] = set()
        self.most = Resources(Millicores(2000), Megabytes(1024))

    @asynccontextmanager
    async def registry(
        self, failpoint: Callable[[str], None] = lambda step: None, **settings: int
    ) -> AsyncIterator[FunctionRegistry]:
        functions = await FunctionRegistry(
            self.store,
            self.folder,
            self.clock,
            FunctionSettings(**settings),  # type: ignore[arg-type] - only whole numbers are tried
            self.events,
            most=lambda: self.most,
            check_policy=lambda name: load_policy(name, DEFAULT_CLASSES),
            failpoint=failpoint,
        ).open()
        running = asyncio.create_task(functions.run(lambda: self.in_use))
        await functions.ready()
        try:
            yield functions
        finally:
            await tasks.cancel_and_wait([running])

    def kept(self) -> set[str]:
        """Digests of the code on disk, which has both its archive and its folder."""
        kept, archives = (
            {f"sha256:{path.name}" for path in (self.folder / part).iterdir()}
            for part in ("kept", "archives")
        )
        assert kept == archives
        return kept

    def left_over(self) -> list[str]:
        return [path.name for part in ("drafts", "trash") for path in (self.folder / part).iterdir()]
