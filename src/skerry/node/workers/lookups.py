"""For which registration of each function its image was looked up last: on disk, so that a restart knows.

Whoever registers a function means what its image's reference means then, which may be a repaired image under
the same tag. So each registration has it looked up once on every node. Registrations are compared for being
the same and never by their time: clocks of two machines differ.
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

_MOST: Final = 10_000  # functions; one that was forgotten is looked up once more


class ImageLookups:
    """One file, and what is in it."""

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

    def is_known(self, function: Function) -> bool:
        return self._by_name.get(function.name) == _registration(function)

    def get(self, name: FunctionName) -> str | None:
        """What `put` takes, to have it as it was."""
        return self._by_name.get(name)

    async def note(self, function: Function) -> None:
        """Its image was looked up for this registration; durable on return, unless the disk is full."""
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
            except OSError as error:  # it is looked up again after a restart
                log.warning("image_lookups.not_written", path=str(self._path), error=str(error))


def _registration(function: Function) -> str:
    """Another one for every registration, also of functions that had the same name."""
    return f"{function.version} {function.created_at!r} {function.updated_at!r}"
