"""Which servers of the cloud are there, and where nodes dial them.

Every server keeps `server/<name>` in the store, with the address of its gRPC listener, under a lease of its
own: one that stops takes its key away, and a dead one's goes by itself. All of them watch the keys, so that
`skerry.control.sessions.node_session` can tell nodes where else to go. Whether an address can be reached is
not tried here: that depends on who dials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from skerry.kit import json_codec
from skerry.store.protocol import Entry, Store
from skerry.store.tables.cache import PrefixCache, RecordChange
from skerry.store.tables.leases import LeasedKey

PREFIX = "server/"


class _ServerRecord(msgspec.Struct, frozen=True):
    grpc: str


class ServerDirectory:
    """All of them, and our own key; `name` is where people reach us, `address` (HOST:PORT) where nodes do."""

    def __init__(self, store: Store, *, name: str, address: str, lease_s: int) -> None:
        self.address = address
        self._presence = LeasedKey(
            store, PREFIX + name, json_codec.encode(_ServerRecord(address)), lease_s=lease_s, leaves=True
        )
        self._view = PrefixCache(store, PREFIX, _read, changed=self._moved)
        self._listeners: list[Callable[[], None]] = []

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where nodes dial the servers that are there now."""
        return tuple(dict.fromkeys(address for _, address in self._view.items()))

    @property
    def names(self) -> tuple[str, ...]:
        """Where people reach the servers that are there now: URLs."""
        return tuple(key.removeprefix(PREFIX) for key, _ in self._view.items())

    def address_of(self, name: str) -> str | None:
        """Where to dial the server of this name; None if it is not there."""
        return self._view.get(PREFIX + name)

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever there may be other addresses."""
        self._listeners.append(changed)

    async def run(self) -> None:
        """Be among them, and follow who else is. For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._view.run())
            group.create_task(self._presence.run())

    def _moved(self, moved: Sequence[RecordChange[str]]) -> None:
        if any(before != after for _, before, after in moved):
            for changed in self._listeners:
                changed()


def _read(entry: Entry) -> str:
    return json_codec.decode(entry.value, _ServerRecord).grpc
