"""The live servers of the cloud, and their addresses for nodes.

Every server has the key `server/<name>` in the store, with the address of its gRPC listener, under a lease of
its own: a server that stops deletes its key, and the key of a dead one expires. All servers watch the keys,
so that `skerry.control.sessions.node_session` can send nodes the addresses of the others. Whether an address
is reachable is not checked: that depends on the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from skerry.kit import json_codec
from skerry.kit.callbacks import CallbackList
from skerry.store.protocol import Store
from skerry.store.tables.leases import LeasedKey
from skerry.store.tables.table import RecordChange, Table, json_of

PREFIX = "server/"


class _ServerRecord(msgspec.Struct, frozen=True):
    grpc: str


class ServerDirectory:
    """All live servers, and our own key; `name` is our URL, `address` (HOST:PORT) is for nodes."""

    def __init__(self, store: Store, *, name: str, address: str, lease_s: int) -> None:
        self.address = address
        self._presence = LeasedKey(
            store, PREFIX + name, json_codec.encode(_ServerRecord(address)), lease_s=lease_s, leaves=True
        )
        self._table = Table(store, PREFIX, json_of(_ServerRecord))
        self._table.subscribe(self._records_changed)
        self._listeners: CallbackList[[]] = CallbackList()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses for nodes of all live servers."""
        return tuple(dict.fromkeys(server.grpc for server in self._table.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """The URLs of all live servers."""
        return tuple(name for name, _ in self._table.items())

    def address_of(self, name: str) -> str | None:
        """The address for nodes of the server of this name; None if it is not live."""
        server = self._table.value(name)
        return None if server is None else server.grpc

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever there may be other addresses."""
        self._listeners.add(changed)

    async def run(self) -> None:
        """Keep our own key, and follow the others, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._table.run())
            group.create_task(self._presence.run())

    def _records_changed(self, changes: Sequence[RecordChange[_ServerRecord]]) -> None:
        if any((before and before.value) != (after and after.value) for _, before, after in changes):
            self._listeners.notify()
