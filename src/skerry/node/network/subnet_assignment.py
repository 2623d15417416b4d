"""The subnet that the server assigned to this node, on disk, for a start while no server can be reached.

`skerry.daemon.node_agent` writes it at every session; `skerry.daemon.containers` opens the network with it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import structlog

from skerry.kit import files, json_codec

log = structlog.get_logger(__name__)


class _File(msgspec.Struct, frozen=True):
    subnet: str


class SubnetAssignment:
    """`subnet` is the content of the file at `path`; empty: none was ever assigned."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.subnet = self._read()

    async def save(self, subnet: str) -> None:
        """Durable on return."""
        if subnet != self.subnet:
            await asyncio.to_thread(
                files.write_atomically, self._path, json_codec.encode(_File(subnet)), files.PRIVATE
            )
            self.subnet = subnet

    def _read(self) -> str:
        try:
            return json_codec.decode(self._path.read_bytes(), _File).subnet
        except FileNotFoundError:
            return ""
        except json_codec.InvalidJson as error:  # the server sends it again
            log.warning("network.assignment_unreadable", file=str(self._path), error=str(error))
            return ""
