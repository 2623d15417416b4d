"""When this node last heard from a server: how old what it knows of revocations is.

`skerry.node.agent.session` notes every message once the server has sent its network objects. The time is kept
on disk, so that it holds after a restart without a server. It is also the least that the clock can say: a
machine without a battery for its clock starts in the past, which would make expired tokens valid.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, json_codec
from skerry.kit.clock import Clock

log = structlog.get_logger(__name__)

_SAVE_EVERY_S = 60.0


class _File(msgspec.Struct, frozen=True):
    at: float


class ServerContact:
    """The last contact, in memory and in the file `path`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._saved = self.at = self._read()
        self._is_new = asyncio.Event()

    def note(self) -> None:
        """A server has sent something just now. TLS with it has just compared the clocks, so a clock that was
        ahead and is right again counts."""
        self.at = self._clock.now()
        if abs(self.at - self._saved) >= _SAVE_EVERY_S:
            self._is_new.set()

    def now(self) -> float:
        """The time, which is never before the last contact."""
        return max(self._clock.now(), self.at)

    @property
    def age_s(self) -> float:
        """Seconds since the last contact."""
        return self.now() - self.at

    async def run(self) -> None:
        """Keep the file up to date, for ever."""
        while True:
            await self._is_new.wait()
            self._is_new.clear()
            try:
                await asyncio.to_thread(self.save)
            except OSError as error:
                log.warning("server_contact.not_written", file=str(self._path), error=str(error))

    def save(self) -> None:
        if self.at != self._saved:
            at = self.at
            files.write_atomically(self._path, json_codec.encode(_File(at)), files.PRIVATE)
            self._saved = at

    def _read(self) -> float:
        try:
            return json_codec.decode(self._path.read_bytes(), _File).at
        except (FileNotFoundError, json_codec.InvalidJson):
            return 0.0  # tokens are refused until a server was reached
