"""Addresses of the control plane: the server that was joined, and those that it announced since.

The list is stored in a file, so that a node that starts while its server is down can reach another. It only
says where to dial: TLS verifies the server's certificate as always. `skerry.node.agent.agent` dials.
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
    """Addresses (HOST:PORT) of one cloud's servers: `joined` and `also`, which is the same server by other
    addresses, always; others as they are announced."""

    def __init__(self, joined: str, path: Path, also: Iterable[str] = ()) -> None:
        self._joined = (joined, *also)
        self._path = path
        self._learned = self._read()

    @property
    def addresses(self) -> tuple[str, ...]:
        """In the order in which to try them."""
        return tuple(dict.fromkeys((*self._joined, *self._learned)))

    def by_preference(self, last_server: str) -> tuple[str, ...]:
        """The same, with the server at `last_server` last, by all of its addresses: dialling a dead machine
        takes until the timeout."""
        last_addresses = self._joined if last_server in self._joined else (last_server,)
        return tuple(sorted(self.addresses, key=lambda address: address in last_addresses))

    async def learn(self, addresses: Iterable[str]) -> None:
        """Replace the announced servers; durable on return."""
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
            return ()  # the server that was joined announces them again
