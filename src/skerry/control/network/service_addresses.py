"""Virtual addresses of services: each gets one when it is created, and keeps it until it is removed.

`service-address/10.63.4.2` in the store names the service that has the address, written in one transaction
with the service's own record, so that no two have the same. An address that was given up is not given to
another service for an hour, in which clients forget it. The leader gives addresses to services that have
none: those of an earlier version, and those whose address is not in the range of the setting any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from skerry.control.leadership.election import LeaderElection
from skerry.control.named_table import key_of
from skerry.control.network.service_subnet import ServiceAddressPool
from skerry.control.services.tables import ServiceRecord, ServiceTables
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import MARKET_NAMESPACE, ServiceId
from skerry.model.services import Service
from skerry.store.protocol import Expect, Store
from skerry.store.tables.table import RecordChange, Table, json_of

log = structlog.get_logger(__name__)

PREFIX: Final = "service-address/"
KEPT_BACK_S: Final = 3600.0  # after it was given up
_GRACE_S: Final = 1.0  # in which the server that created a service gives it an address itself
_RETRY_S: Final = 30.0  # services that could not get one


class ServiceAddressRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which service has an address, or had it until `released_at`."""

    service: ServiceId
    service_key: str  # in the table of services
    released_at: float | None = None


class ServiceAddressAllocator:
    """The addresses of all services, as in the store."""

    def __init__(self, store: Store, clock: Clock, pool: ServiceAddressPool, services: ServiceTables) -> None:
        self.pool = pool
        self._clock = clock
        self._services = services.services
        self.table: Table[ServiceAddressRecord] = Table(store, PREFIX, json_of(ServiceAddressRecord))
        self._lacking: set[str] = set()  # keys of services
        self._given_up: set[str] = set()  # addresses
        self._changed = asyncio.Event()
        self._services.subscribe(self._services_changed)

    async def run(self) -> None:
        """Follow the table for ever."""
        await self.table.run()

    async def ready(self) -> None:
        await self.table.ready()

    def needs_address(self, service: Service) -> bool:
        is_own = service.namespace != MARKET_NAMESPACE and not service.is_deleting
        return is_own and not self.pool.has(service.address)

    async def assign(self, service: Service, *, fence: Expect | None = None) -> Service:
        """The service with an address; as it is if it has one, or is gone. Raises ResourcesExhausted."""
        key = key_of(service)
        record = self._services.get(key)
        while True:
            if record is None or record.value.id != service.id:
                record = await self._services.read(key)
            if record is None or record.value.id != service.id:
                return service
            if not self.needs_address(record.value):
                return record.value
            address = self.pool.choose(service.id, self._is_free)
            after = replace(record.value, address=address)
            taken = self.table.put(address, ServiceAddressRecord(service.id, key))
            expect = [
                self.table.expect(address, self.table.get(address)),
                self._services.expect(key, record),
            ]
            try:
                revision = await self.table.commit([taken, self._services.put(key, after)], expect, fence)
            except errors.Conflict:  # somebody took the address, or changed the service
                await self.table.sync()
                record = await self._services.read(key)
                continue
            await self._services.wait_for_change(revision)
            return after

    async def lead(self, leader: LeaderElection) -> None:
        """For ever: while this server leads, give addresses to services without, and release others."""
        await self.ready()
        await self._services.ready()
        await leader.run_while_leading("service addresses", self._lead)

    async def _lead(self, fence: Expect) -> None:
        await self._services.sync()
        await self.table.sync()
        held = {value.address for value in self._services.values()}
        self._given_up |= {
            address
            for address, record in self.table.items()
            if record.value.released_at is None and address not in held
        }
        self._lacking |= {key for key, record in self._services.items() if self.needs_address(record.value)}
        while True:
            self._changed.clear()
            await self.reconcile(fence)
            # What is left could not be done now.
            pause_s = _RETRY_S if self._lacking or self._given_up else None
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
                    await asyncio.sleep(_GRACE_S)
            except TimeoutError:
                pass

    async def reconcile(self, fence: Expect | None = None) -> None:
        """Do what is known to be due."""
        for address in sorted(self._given_up):
            try:
                await self._release(address, fence)
            except (errors.Unavailable, errors.Conflict) as error:
                log.warning("services.address_not_released", address=address, error=error.message)
                continue
            self._given_up.discard(address)
        for key in sorted(self._lacking):
            record = self._services.get(key)
            try:
                if record is not None and self.needs_address(record.value):
                    after = await self.assign(record.value, fence=fence)
                    log.info("services.address_assigned", service=after.id, address=after.address)
            except (errors.Unavailable, errors.ResourcesExhausted) as error:
                log.warning("services.address_not_assigned", service=key, error=error.message)
                continue
            self._lacking.discard(key)

    async def _release(self, address: str, fence: Expect | None) -> None:
        known = await self.table.read(address)
        if known is None or known.value.released_at is not None:
            return
        owner = known.value
        service = await self._services.read(owner.service_key)
        if service is not None and service.value.id == owner.service and service.value.address == address:
            return
        released = replace(owner, released_at=self._clock.now())
        await self.table.commit(
            [self.table.put(address, released)],
            [self.table.expect(address, known), self._services.expect(owner.service_key, service)],
            fence,
        )

    def _is_free(self, address: str) -> bool:
        record = self.table.get(address)
        if record is None:
            return True
        released_at = record.value.released_at
        return released_at is not None and self._clock.now() - released_at >= KEPT_BACK_S

    def _services_changed(self, changes: Sequence[RecordChange[Service]]) -> None:
        for key, before, after in changes:
            was, now = _address(before), _address(after)
            if was and was != now:
                self._given_up.add(was)
            if after is not None and self.needs_address(after.value):
                self._lacking.add(key)
        if self._given_up or self._lacking:
            self._changed.set()


def _address(record: ServiceRecord | None) -> str:
    return "" if record is None else record.value.address
