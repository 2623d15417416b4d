"""Where this node finds its control plane: the server it joined at, and those it was told of since.

The list is kept in a file, so that a node that starts while its server is gone knows where else to go. It
says only where to dial: who answers must show a certificate of the cloud's CA for that host, as always.
`skerry.node.agent.agent` dials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, json_codec

log = structlog.get_logger(__name__)


class _AddressFile(msgspec.Struct, frozen=True):
    servers: tuple[str, ...]


class ServerAddressCache:
    """Addresses (HOST:PORT) of one cloud's servers: `joined` and `also`, the same by other addresses, for
    good; others as they come and go."""

    def __init__(self, joined: str, path: Path, also: Iterable[str] = ()) -> None:
        self._joined = (joined, *also)
        self._path = path
        self._learned = self._read()

    @property
    def addresses(self) -> tuple[str, ...]:
        """In the order in which to try them."""
        return tuple(dict.fromkeys((*self._joined, *self._learned)))

    def by_preference(self, lost: str) -> tuple[str, ...]:
        """The same, but the server at `lost` comes last, by whichever address: a machine that is gone lets
        every attempt wait."""
        last = self._joined if lost in self._joined else (lost,)
        return tuple(sorted(self.addresses, key=lambda address: address in last))

    async def learn(self, addresses: Iterable[str]) -> None:
        """These are all the servers now; durable on return."""
        learned = tuple(addresses)
        if learned == self._learned:
            return
        data = json_codec.encode(_AddressFile(learned))
        self._learned = learned
        log.info("servers.learnt", servers=learned)
        await asyncio.to_thread(files.write_atomically, self._path, data, files.PRIVATE)

    def _read(self) -> tuple[str, ...]:
        try:
            return json_codec.decode(self._path.read_bytes(), _AddressFile).servers
        except FileNotFoundError:
            return ()
        except json_codec.InvalidJson as error:
            log.warning("servers.unreadable", file=str(self._path), error=str(error))
            return ()  # the one that was joined will tell again
