"""The subnet that the server gave this node, on disk: it has it also when it starts while no server is there.

`skerry.daemon.node_agent` writes it with every connection; `skerry.daemon.containers` opens the network with
it.
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
    """`subnet` is what the file at `path` says; empty: no server ever gave this node one."""

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
        except json_codec.InvalidJson as error:  # the server tells it again
            log.warning("network.assignment_unreadable", file=str(self._path), error=str(error))
            return ""
