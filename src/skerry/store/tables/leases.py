"""One key of the store that says that this process is there: kept under a lease for as long as it is.

Whoever dies without a word is gone when the lease ends. What the key means is its owner's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from skerry.model import errors
from skerry.store.protocol import NO_LEASE, LeaseId, Put, Store

log = structlog.get_logger(__name__)

_KEEPS_PER_LEASE = 3  # one that fails or is late does not end it
_RETRY_S = 1.0


class LeasedKey:
    """Keeps `key`, which outlives this process by at most `lease_s`; with `leaves`, only if it is killed."""

    def __init__(self, store: Store, key: str, value: bytes, *, lease_s: int, leaves: bool) -> None:
        self._store = store
        self._key = key
        self._value = value
        self._lease_s = lease_s
        self._leaves = leaves

    async def run(self) -> None:
        """Be there. For ever."""
        lease = NO_LEASE
        try:
            while True:
                try:
                    lease = await self._renew(lease)
                    pause_s = self._lease_s / _KEEPS_PER_LEASE
                except (errors.Unavailable, errors.NotFound) as error:
                    log.warning("presence.unknown", key=self._key, error=error.message)
                    lease, pause_s = NO_LEASE, _RETRY_S
                await asyncio.sleep(pause_s)
        finally:
            if self._leaves and lease != NO_LEASE:
                with suppress(errors.NotFound, errors.Unavailable):
                    await self._store.drop(lease)

    async def _renew(self, lease: LeaseId) -> LeaseId:
        if lease != NO_LEASE:
            try:
                await self._store.keep(lease)
                return lease
            except errors.NotFound:
                log.warning("presence.lease-ended", key=self._key)
        lease = await self._store.grant(self._lease_s)
        await self._store.commit([Put(self._key, self._value, lease)])
        return lease
