"""The members that this process knows of, as the control plane last sent them.

Kept on disk, so that a node that starts without its control plane finds its neighbours. Callers find out
whether they can be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, json_codec
from skerry.model.members import ContinuumMember
from skerry.model.node_messages import MemberList

log = structlog.get_logger(__name__)


class _StoredMembers(msgspec.Struct, frozen=True):
    members: tuple[ContinuumMember, ...]


class MemberCache:
    """All members, this process among them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listeners: list[Callable[[], None]] = []
        self.all = self._read()

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever `all` is another."""
        self._listeners.append(changed)

    async def update(self, members: MemberList) -> None:
        """Replace all of them by what the control plane sent; durable on return."""
        if members.members == self.all:
            return
        data = json_codec.encode(_StoredMembers(members.members))
        self.all = members.members
        for changed in self._listeners:
            changed()
        await asyncio.to_thread(files.write_atomically, self._path, data, files.PRIVATE)
        log.info("members.learnt", count=len(members.members))

    def _read(self) -> tuple[ContinuumMember, ...]:
        try:
            return json_codec.decode(self._path.read_bytes(), _StoredMembers).members
        except FileNotFoundError:
            return ()
        except json_codec.InvalidJson as error:
            log.warning("members.unreadable", file=str(self._path), error=str(error))
            return ()  # the control plane will send it again
