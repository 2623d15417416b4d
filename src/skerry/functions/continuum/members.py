"""The members that this process knows of, as the control plane told it last.

Kept on disk, so that a node that starts while its control plane is away finds its neighbours. Says only who
they are; whether they are there is found out by those who call them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, jsonio
from skerry.model.members import Member
from skerry.model.sessions import Members as Told

log = structlog.get_logger(__name__)


class _Book(msgspec.Struct, frozen=True):
    members: tuple[Member, ...]


class KnownMembers:
    """Everybody who takes calls of functions, this process among them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listeners: list[Callable[[], None]] = []
        self.all = self._read()

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever `all` is another."""
        self._listeners.append(changed)

    async def hear(self, told: Told) -> None:
        """The control plane says that these are all of them; durable on return."""
        if told.members == self.all:
            return
        data = jsonio.encode(_Book(told.members))
        self.all = told.members
        for changed in self._listeners:
            changed()
        await asyncio.to_thread(files.write_atomically, self._path, data, files.PRIVATE)
        log.info("members.learnt", count=len(told.members))

    def _read(self) -> tuple[Member, ...]:
        try:
            return jsonio.decode(self._path.read_bytes(), _Book).members
        except FileNotFoundError:
            return ()
        except jsonio.Malformed as error:
            log.warning("members.unreadable", file=str(self._path), error=str(error))
            return ()  # the control plane will tell again
