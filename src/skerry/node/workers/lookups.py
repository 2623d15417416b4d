"""The registration of each function for which its image was last resolved, on disk for the next agent.

A registration means the image that its reference resolves to at that time, which may be a repaired one under
the same tag. So each registration is resolved once on every node. Registrations are compared for equality and
never by time: clocks of two machines differ.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import structlog

from skerry.kit import files, json_codec, tasks
from skerry.model.functions import Function
from skerry.model.ids import FunctionName

log = structlog.get_logger(__name__)

_MOST: Final = 10_000  # functions; a dropped one is resolved once more


class ImageLookups:
    """One file, and its content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = asyncio.Lock()
        self._by_name: dict[str, str] = {}
        try:
            self._by_name = json_codec.decode(path.read_bytes(), dict[str, str])
        except FileNotFoundError:
            pass
        except (OSError, json_codec.InvalidJson) as error:
            log.warning("image_lookups.not_read", path=str(path), error=str(error))

    def is_resolved(self, function: Function) -> bool:
        return self._by_name.get(function.name) == _registration(function)

    def get(self, name: FunctionName) -> str | None:
        """The value for `put`, to restore it."""
        return self._by_name.get(name)

    async def mark_resolved(self, function: Function) -> None:
        """Its image was resolved for this registration; durable on return, unless the disk is full."""
        await self.put(function.name, _registration(function))

    async def put(self, name: FunctionName, registration: str | None) -> None:
        if self._by_name.get(name) == registration:
            return
        self._by_name.pop(name, None)
        if registration is not None:
            self._by_name[name] = registration
        while len(self._by_name) > _MOST:
            del self._by_name[next(iter(self._by_name))]
        await tasks.run_to_completion(self._write())

    async def _write(self) -> None:
        async with self._writing:
            data = json_codec.encode(self._by_name)
            try:
                await asyncio.to_thread(files.write_atomically, self._path, data, files.PRIVATE)
            except OSError as error:  # it is resolved again after a restart
                log.warning("image_lookups.not_written", path=str(self._path), error=str(error))


def _registration(function: Function) -> str:
    """Differs for every registration, also of functions with the same name."""
    return f"{function.version} {function.created_at!r} {function.updated_at!r}"
