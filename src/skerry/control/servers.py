"""Which servers of the cloud are there, and where nodes dial them.

Every server keeps `server/<name>` in the store, with the address of its gRPC listener, under a lease of its
own: one that stops takes its key away, and a dead one's goes by itself. All of them watch the keys, so that
`skerry.control.sessions` can tell nodes where else to go. Whether an address can be reached is not tried
here: that depends on who dials.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import structlog

from skerry.kit import jsonio
from skerry.model import errors
from skerry.store.protocol import NO_LEASE, Entry, LeaseId, Put, Store
from skerry.store.view import Moved, View

log = structlog.get_logger(__name__)

PREFIX = "server/"
_KEEPS_PER_LEASE = 3  # one that fails or is late does not end it
_RETRY_S = 1.0


class _Record(msgspec.Struct, frozen=True):
    grpc: str


class Servers:
    """All of them, and our own key; `name` is where people reach us, `address` (HOST:PORT) where nodes do."""

    def __init__(self, store: Store, *, name: str, address: str, lease_s: int) -> None:
        self._store = store
        self._name = name
        self._value = jsonio.encode(_Record(address))
        self._lease_s = lease_s
        self._view = View(store, PREFIX, _read, changed=self._moved)
        self._listeners: list[Callable[[], None]] = []

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where nodes dial the servers that are there now."""
        return tuple(dict.fromkeys(address for _, address in self._view.items()))

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
            group.create_task(self._stay())

    async def _stay(self) -> None:
        lease = NO_LEASE
        try:
            while True:
                try:
                    lease = await self._renew(lease)
                    pause_s = self._lease_s / _KEEPS_PER_LEASE
                except (errors.Unavailable, errors.NotFound) as error:
                    log.warning("server.unlisted", name=self._name, error=error.message)
                    lease, pause_s = NO_LEASE, _RETRY_S
                await asyncio.sleep(pause_s)
        finally:
            if lease != NO_LEASE:
                with suppress(errors.NotFound, errors.Unavailable):
                    await self._store.drop(lease)

    async def _renew(self, lease: LeaseId) -> LeaseId:
        if lease != NO_LEASE:
            try:
                await self._store.keep(lease)
                return lease
            except errors.NotFound:
                log.warning("server.lease-ended", name=self._name)
        lease = await self._store.grant(self._lease_s)
        await self._store.commit([Put(PREFIX + self._name, self._value, lease)])
        return lease

    def _moved(self, moved: Sequence[Moved[str]]) -> None:
        if any(before != after for _, before, after in moved):
            for changed in self._listeners:
                changed()


def _read(entry: Entry) -> str:
    return jsonio.decode(entry.value, _Record).grpc
