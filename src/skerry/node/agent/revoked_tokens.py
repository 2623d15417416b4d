"""The offline tokens, and keys of such, that this machine refuses, in memory and on disk.

Nodes learn them as network objects; a server follows its own store, which may be restored from a backup that
is older than a revocation. Like `skerry.node.agent.revocations`: no update makes a token valid again, and
only what has expired is dropped. Written at once, not with the other network objects: a revocation that has
arrived holds after a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import structlog

from skerry.kit import files, json_codec
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.callers import is_past
from skerry.model.offline_tokens import RevokedToken

log = structlog.get_logger(__name__)

_RETRY_S = 5.0


class RevokedTokenList:
    """Ids of revoked tokens and keys, in memory and in the file `path`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Raises `FailedPrecondition` if the file is damaged: without it, revoked tokens would be
        accepted."""
        self._path = path
        self._clock = clock
        self._revoked = {one.id: one for one in self._read()}
        self._changed = asyncio.Event()

    @property
    def all(self) -> tuple[RevokedToken, ...]:
        """Those that have not expired."""
        now = self._clock.now()
        return tuple(one for one in self._revoked.values() if not is_past(one.expires_at, now))

    def is_revoked(self, id: str) -> bool:
        return id in self._revoked

    def add(self, revoked: Iterable[RevokedToken]) -> None:
        """Refuse these from now on; `run` writes them."""
        before = self._revoked
        added = {one.id: one for one in revoked if one.id not in before}
        if added:
            now = self._clock.now()
            every = {**before, **added}
            self._revoked = {id: one for id, one in every.items() if not is_past(one.expires_at, now)}
            self._changed.set()

    async def run(self) -> None:
        """Write what was added, at once. Runs for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.save()
            except OSError as error:
                log.warning("revoked_tokens.not_written", file=str(self._path), error=str(error))
                await asyncio.sleep(_RETRY_S)
                self._changed.set()

    async def save(self) -> None:
        """Write the file; durable on return."""
        data = json_codec.encode(list(self._revoked.values()))
        await asyncio.to_thread(files.write_atomically, self._path, data, files.PRIVATE)
        log.info("revoked_tokens.learnt", count=len(self._revoked))

    def _read(self) -> list[RevokedToken]:
        try:
            return json_codec.decode(self._path.read_bytes(), list[RevokedToken])
        except FileNotFoundError:
            return []
        except json_codec.InvalidJson as error:
            raise errors.FailedPrecondition(
                f"the list of revoked tokens in {self._path} is damaged ({error}); remove it and start again "
                "while a server can be reached, which sends the list again"
            ) from None
