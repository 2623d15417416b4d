"""The functions of a node: a copy of what is registered, as the control plane sends it.

Nodes call and run from memory; the copy is on disk too, so that a node that starts without its control plane
has the last state. Definitions come with the session and code does not: it is fetched when it is needed, and
stored as on servers (`skerry.functions.registry.code_store`). Nothing is registered here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from skerry.functions.registry.code_store import CodeStore
from skerry.kit import files, json_codec, tasks
from skerry.kit.clock import Clock
from skerry.model.functions import Function
from skerry.model.ids import Digest
from skerry.model.node_messages import FunctionUpdate
from skerry.model.settings import FunctionSettings

log = structlog.get_logger(__name__)

_FILE: Final = "functions.json"
# What comes soon after a write is written together. All is written each time, so a long list is written less
# often, for this share of the time at most.
_SOON_S: Final = 0.05
_WRITING: Final = 0.1
_COLLECT_EVERY_S: Final = 10.0

# The function before and after; None: it did or does not exist.
ReplicaCallback = Callable[[Function | None, Function | None], Awaitable[None]]


class _StoredFunctions(msgspec.Struct, frozen=True):
    functions: tuple[Function, ...]


class FunctionReplica:
    """`await FunctionReplica.open(...)`, then `run` for ever."""

    def __init__(self, file: Path, code: CodeStore, known: Iterable[Function], clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._by_key: dict[str, Function] = {}  # by name
        self._listeners: list[ReplicaCallback] = []
        self._is_unsaved = asyncio.Event()  # of what is not on disk
        self._updated = asyncio.Event()  # set, and another one from then on, when an update came
        self.code = code
        for function in known:
            self._put(function)
        self._is_unsaved.clear()

    @classmethod
    async def open(cls, folder: Path, settings: FunctionSettings, clock: Clock) -> FunctionReplica:
        """What was known when this node last wrote it down, with the code that it has of it."""
        return await tasks.in_thread(cls._open, folder, settings, clock)

    @classmethod
    def _open(cls, folder: Path, settings: FunctionSettings, clock: Clock) -> FunctionReplica:
        file = files.private_folder(folder) / _FILE
        known = _read(file)
        code = CodeStore(folder / "code", settings)
        code.load(function.code for function in known if function.code is not None)
        return cls(file, code, known, clock)

    async def run(self, in_use: Callable[[], Collection[Digest]]) -> None:
        """Write down what is new, and remove code that is neither known nor `in_use`, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_for_ever())
            while True:
                if removed := await self.code.collect(in_use()):
                    log.info("code.collected", count=removed)
                await asyncio.sleep(_COLLECT_EVERY_S)

    async def close(self) -> None:
        """Write down what is new."""
        if self._is_unsaved.is_set():
            await self._write()

    def listen(self, changed: ReplicaCallback) -> None:
        """Await `changed` for each function that is another, once the whole update is applied."""
        self._listeners.append(changed)

    async def update(self, update: FunctionUpdate) -> None:
        """Apply an update of the control plane."""
        there = {function.name: function for function in update.functions}
        gone = set[str](update.removed)
        if update.is_full:
            gone |= self._by_key.keys() - there.keys()
        moves = [(self._by_key.get(key), function) for key, function in there.items()]
        moves = [(before, after) for before, after in moves if before != after]
        ended = [before for key in gone if (before := self._by_key.get(key)) is not None]
        for _, function in moves:
            self._put(function)
        for function in ended:
            self._remove(function)
        for before, after in moves:
            await self._notify(before, after)
        for function in ended:
            await self._notify(function, None)
        self._updated.set()
        self._updated = asyncio.Event()

    def all_known(self) -> list[Function]:
        """All, from memory."""
        return list(self._by_key.values())

    def get(self, name: str) -> Function | None:
        """From memory."""
        return self._by_key.get(name)

    def names(self) -> list[str]:
        """All, in order."""
        return [self._by_key[key].name for key in sorted(self._by_key)]

    def code_folder(self, function: Function) -> Path | None:
        """Where its code is unpacked; None if it has none, or none on this node yet."""
        return None if function.code is None else self.code.folder(function.code)

    async def archive(self, digest: Digest) -> bytes:
        """The code as it came. Raises `NotFound` if it is not on this node."""
        return await self.code.archive(digest)

    async def catch_up(self, name: str, version: int) -> None:
        """Wait until the control plane has sent this version, for as long as that takes."""
        log.info("functions.behind", function=name, version=version)
        while (function := self.get(name)) is None or function.version < version:
            await self._updated.wait()

    def _put(self, function: Function) -> None:
        key = function.name
        before = self._by_key.get(key)
        self._by_key[key] = function
        # In this order: code that stays is at no moment without a name.
        if function.code is not None:
            self.code.name(function.code)
        if before is not None and before.code is not None:
            self.code.forget(before.code)
        self._is_unsaved.set()

    def _remove(self, function: Function) -> None:
        del self._by_key[function.name]
        if function.code is not None:
            self.code.forget(function.code)
        self._is_unsaved.set()

    async def _notify(self, before: Function | None, after: Function | None) -> None:
        for changed in self._listeners:
            await changed(before, after)

    async def _write_for_ever(self) -> None:
        while True:
            await self._is_unsaved.wait()
            began = self._clock.monotonic()
            await self._write()
            await asyncio.sleep(max(_SOON_S, (self._clock.monotonic() - began) / _WRITING))

    async def _write(self) -> None:
        self._is_unsaved.clear()
        stored = _StoredFunctions(tuple(self._by_key.values()))
        try:
            await tasks.in_thread(_keep, self._file, stored)
        except OSError as error:
            # Memory has it until this process ends, and the next session sends all again.
            log.warning("functions.not_written", file=str(self._file), error=repr(error))


def _read(file: Path) -> tuple[Function, ...]:
    try:
        return json_codec.decode(file.read_bytes(), _StoredFunctions).functions
    except FileNotFoundError:
        return ()
    except json_codec.InvalidJson as error:
        log.warning("functions.unreadable", file=str(file), error=str(error))
        return ()  # the control plane will send it again


def _keep(file: Path, stored: _StoredFunctions) -> None:
    files.write_atomically(file, json_codec.encode(stored), files.PRIVATE)  # environments may hold secrets
