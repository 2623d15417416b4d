"""Leases: one that is renewed, one that many short-lived keys share, and a key kept under one of its own.

The owner handles the end of a lease: a leader loses the lead (`skerry.control.leadership.election`), others
write their keys again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.store.protocol import NO_LEASE, LeaseId, Put, Store

log = structlog.get_logger(__name__)

RENEWALS = 3  # in the time of a lease: one that fails or is late does not end it
RETRY_S = 1.0


class LeaseKeeper:
    """A lease that is renewed, and another one once it has ended."""

    def __init__(self, store: Store, ttl_s: int) -> None:
        self.lease = NO_LEASE
        self._store = store
        self._ttl_s = ttl_s

    async def renew(self) -> bool:
        """True if the lease is the one it was; else it is a new one, and has none of the keys."""
        if self.lease != NO_LEASE:
            with suppress(errors.NotFound):
                await self._store.renew_lease(self.lease)
                return True
        self.lease = await self._store.grant_lease(self._ttl_s)
        return False


class SharedLease:
    """For keys that are to last `keep_s`, and at most `shared_s` longer: those of that time share a lease,
    since one for each would cost more than what it is for."""

    def __init__(self, store: Store, clock: Clock, *, keep_s: int, shared_s: int) -> None:
        self._store = store
        self._clock = clock
        self._keep_s = keep_s
        self._shared_s = shared_s
        self._lease = NO_LEASE
        self._shared_until = 0.0

    async def current(self) -> LeaseId:
        now = self._clock.monotonic()
        if self._lease == NO_LEASE or now >= self._shared_until:
            self._lease = await self._store.grant_lease(self._keep_s + self._shared_s)
            self._shared_until = now + self._shared_s
        return self._lease

    def forget(self) -> None:
        """It has expired, as after a suspend of the machine."""
        self._lease = NO_LEASE


class LeasedKey:
    """Keeps `key`, which outlives this process by at most `lease_s`; with `leaves`, only if it is killed."""

    def __init__(self, store: Store, key: str, value: bytes, *, lease_s: int, leaves: bool) -> None:
        self._store = store
        self._key = key
        self._value = value
        self._lease_s = lease_s
        self._leaves = leaves
        self._keeper = LeaseKeeper(store, lease_s)

    async def run(self) -> None:
        """Be there. For ever."""
        try:
            while True:
                try:
                    await self._renew()
                    pause_s = self._lease_s / RENEWALS
                except (errors.Unavailable, errors.NotFound) as error:
                    log.warning("presence.unknown", key=self._key, error=error.message)
                    self._keeper.lease, pause_s = NO_LEASE, RETRY_S
                await asyncio.sleep(pause_s)
        finally:
            if self._leaves and self._keeper.lease != NO_LEASE:
                with suppress(errors.NotFound, errors.Unavailable):
                    await self._store.revoke_lease(self._keeper.lease)

    async def _renew(self) -> None:
        before = self._keeper.lease
        if await self._keeper.renew():
            return
        if before != NO_LEASE:
            log.warning("presence.lease_ended", key=self._key)
        await self._store.commit([Put(self._key, self._value, self._keeper.lease)])
