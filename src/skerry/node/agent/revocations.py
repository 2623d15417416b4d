"""The revocation list of this node: certificates that it rejects.

`skerry.node.agent.session` adds to it; `skerry.node.agent.certificates` and member links check it. It is
stored on disk, so that a node that starts while its control plane is unreachable still rejects them. No
update makes a certificate valid again: the next server may not know of the revocation yet. Expired
certificates are dropped, since TLS rejects those. A server keeps such a list beside its CA, too: the store
may be restored from a backup older than a revocation (`follow`). Revocations while there is no connection
take effect at the next session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, json_codec
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.callers import RevokedCertificate, is_past
from skerry.model.node_messages import RevocationUpdate

log = structlog.get_logger(__name__)


class _File(msgspec.Struct, frozen=True):
    revoked: tuple[RevokedCertificate, ...]


class RevocationList:
    """Serials of revoked certificates, in memory and in the file `path`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        """Raises `FailedPrecondition` if the file is damaged: without it, revoked certificates would be
        accepted."""
        self._path = path
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        self._revoked = {one.serial: one for one in self._read()}
        self._written = dict(self._revoked)

    @property
    def all(self) -> tuple[RevokedCertificate, ...]:
        """The revoked certificates that have not expired."""
        now = self._clock.now()
        return tuple(one for one in self._revoked.values() if not is_past(one.not_after, now))

    def is_revoked(self, serial: str) -> bool:
        return serial in self._revoked

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever certificates are added."""
        self._listeners.append(changed)

    async def add(self, update: RevocationUpdate) -> None:
        """Add these; durable on return."""
        now = self._clock.now()
        before = self._revoked
        every = (*before.values(), *update.revoked)
        self._revoked = {one.serial: one for one in every if not is_past(one.not_after, now)}
        if self._revoked.keys() - before.keys():
            for changed in self._listeners:
                changed()
        if self._written == self._revoked:
            return
        data, revoked = json_codec.encode(_File(tuple(self._revoked.values()))), self._revoked
        await asyncio.to_thread(files.write_atomically, self._path, data, files.PRIVATE)
        self._written = revoked
        log.info("revocations.learnt", count=len(revoked))

    async def follow(
        self,
        revoked: Callable[[], Sequence[RevokedCertificate]],
        listen: Callable[[Callable[[], None]], None],
    ) -> None:
        """Add all that are `revoked`, now and after every change that `listen` reports. Runs for ever."""
        changed = asyncio.Event()
        listen(changed.set)
        while True:
            changed.clear()
            await self.add(RevocationUpdate(tuple(revoked())))
            await changed.wait()

    def _read(self) -> tuple[RevokedCertificate, ...]:
        try:
            return json_codec.decode(self._path.read_bytes(), _File).revoked
        except FileNotFoundError:
            return ()
        except json_codec.InvalidJson as error:
            raise errors.FailedPrecondition(
                f"the list of revoked certificates in {self._path} is damaged ({error}); remove it and start "
                "again while the server can be reached, which sends the list again"
            ) from None
