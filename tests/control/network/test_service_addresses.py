"""Virtual addresses: every service has one of its own for its life, and none is used again soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.control.named_table import key_of
from skerry.control.network.service_addresses import KEPT_BACK_S, ServiceAddressAllocator
from skerry.control.network.service_subnet import ServiceAddressPool
from skerry.control.services.requests import ServiceSpec
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import Namespace, ServiceId
from skerry.model.services import Service
from tests.control.worlds import spec
from tests.support.controls import Control

POOL = ServiceAddressPool("10.63.0.0/16", "10.64.0.0/10")
SMALL = ServiceAddressPool("10.63.0.0/28", "10.64.0.0/10")  # 14 addresses


@pytest.fixture
async def small(control: Control) -> AsyncIterator[ServiceAddressAllocator]:
    """Another server's, in a range of 14."""
    allocator = ServiceAddressAllocator(control.store, control.clock, SMALL, control.services.tables)
    running = asyncio.create_task(allocator.run())
    await allocator.ready()
    yield allocator
    await cancel_and_wait([running])


async def create(control: Control, name: str) -> Service:
    service, _ = await control.services.create(ServiceSpec(spec(name)), actor="test")
    return service


async def remove(control: Control, service: Service) -> None:
    services = control.services.tables.services
    await services.commit([services.delete(key_of(service))])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("10.63.0.0", "must be a /12 to a /28"),
        ("10.63.0.0/30", "must be a /12 to a /28"),
        ("10.0.0.0/8", "must be a /12 to a /28"),
        ("10.63.1.0/16", "is no IPv4 network"),
        ("fd00::/64", "is no IPv4 network"),
        ("8.8.0.0/16", "must be part of 10.0.0.0/8"),
        ("10.64.0.0/16", "overlaps fleet.subnets"),
        ("10.32.0.0/10", "is no IPv4 network"),
    ],
)
def test_a_range_that_cannot_be_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(errors.Invalid, match=reason) as refused:
        ServiceAddressPool(text, "10.64.0.0/10")
    assert refused.value.field == "fleet.service_subnet"


@given(st.sets(st.integers(1, 14), max_size=13), st.text(max_size=30))
def test_the_choice_is_free_in_the_range_and_the_same_again(taken: set[int], id: str) -> None:
    busy = {f"10.63.0.{last}" for last in taken}
    chosen = SMALL.choose(ServiceId(id), lambda address: address not in busy)
    assert SMALL.has(chosen)
    assert chosen not in busy | {"10.63.0.0", "10.63.0.15"}
    assert SMALL.choose(ServiceId(id), lambda address: address not in busy) == chosen


async def test_a_new_service_has_an_address_and_keeps_it(control: Control) -> None:
    allocator = ServiceAddressAllocator(control.store, control.clock, POOL, control.services.tables)
    running = asyncio.create_task(allocator.run())
    await allocator.ready()
    control.services.assign_addresses(allocator)
    service = await create(control, "web")
    assert POOL.has(service.address)
    changed = await control.services.scale("web", 5, actor="test")
    assert changed.address == service.address
    again, is_new = await control.services.create(ServiceSpec(spec("web"), replicas=5), actor="test")
    assert (again.address, is_new) == (service.address, False)
    await cancel_and_wait([running])


async def test_concurrent_servers_give_no_address_twice(
    control: Control, small: ServiceAddressAllocator
) -> None:
    other = ServiceAddressAllocator(control.store, control.clock, SMALL, control.services.tables)
    running = asyncio.create_task(other.run())
    await other.ready()
    services = [await create(control, f"web-{number}") for number in range(14)]
    given = await asyncio.gather(
        *(allocator.assign(each) for each in services for allocator in (small, other))
    )
    assert len({each.address for each in given}) == 14
    one_more = await create(control, "late")
    with pytest.raises(errors.ResourcesExhausted, match="or set fleet"):
        await small.assign(one_more)
    await cancel_and_wait([running])


async def test_a_service_is_created_though_no_address_is_left(
    control: Control, small: ServiceAddressAllocator
) -> None:
    control.services.assign_addresses(small)
    created = [await create(control, f"web-{number}") for number in range(15)]
    assert [each.address for each in created].count("") == 1


async def test_the_leader_fills_in_what_is_missing_and_releases_what_is_given_up(
    control: Control, small: ServiceAddressAllocator, clock: ManualClock
) -> None:
    services = [await create(control, f"web-{number}") for number in range(15)]  # of an earlier version
    await small.reconcile()
    records = {each.id: each for each in control.services.tables.services.values()}
    addresses = {id: each.address for id, each in records.items() if each.address}
    assert len(set(addresses.values())) == 14
    (lacking,) = records.keys() - addresses.keys()
    # One goes: its address is not given to the one that waits before an hour has passed.
    gone = next(each for each in services if each.id != lacking)
    await remove(control, gone)
    await small.reconcile()
    assert control.services.tables.services.by_id(lacking).value.address == ""  # type: ignore[union-attr]
    clock.advance(KEPT_BACK_S)
    await small.reconcile()
    assert control.services.tables.services.by_id(lacking).value.address == addresses[gone.id]  # type: ignore[union-attr]


async def test_an_address_of_a_former_range_is_replaced_and_released(
    control: Control, small: ServiceAddressAllocator
) -> None:
    service = await small.assign(await create(control, "web"))
    moved = ServiceAddressPool("10.62.0.0/24", "10.64.0.0/10")
    successor = ServiceAddressAllocator(control.store, control.clock, moved, control.services.tables)
    running = asyncio.create_task(successor.run())
    await successor.ready()
    after = await successor.assign(service)
    assert moved.has(after.address)
    await successor.reconcile()
    record = await successor.table.read(service.address)
    assert record is not None
    assert record.value.released_at is not None
    await cancel_and_wait([running])


async def test_an_address_whose_service_is_not_known_here_yet_is_not_released(
    control: Control, small: ServiceAddressAllocator
) -> None:
    service = await small.assign(await create(control, "web"))
    small._given_up.add(service.address)
    await small.reconcile()
    record = await small.table.read(service.address)
    assert record is not None
    assert record.value.released_at is None


async def test_services_of_the_market_and_those_that_go_get_none(
    control: Control, small: ServiceAddressAllocator
) -> None:
    service = await create(control, "web")
    assert not small.needs_address(replace(service, namespace=Namespace("market")))
    assert not small.needs_address(replace(service, is_deleting=True))
