"""Subnets, addresses and the names that follow from them."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.node.network.addresses import AddressAllocator
from skerry.node.network.subnets import BridgeSubnets, KernelNames, NodeSubnet, choose, mac_of

KEYS = st.text("0123456789abcdef", min_size=8, max_size=8)


@st.composite
def subnets(draw: st.DrawFn) -> NodeSubnet:
    prefix = draw(st.integers(8, 30))
    block = draw(st.integers(0, 2 ** (prefix - 8) - 1))
    return NodeSubnet(str(IPv4Network((10 << 24 | block << (32 - prefix), prefix))))


@given(subnets(), st.integers(0))
def test_every_address_has_a_number_and_every_number_an_address(subnet: NodeSubnet, number: int) -> None:
    number %= subnet.size
    address = subnet.address(number)
    assert subnet.has(address)
    assert subnet.number(address) == number
    assert address not in (subnet.gateway, subnet.network[0], subnet.network[-1])


@given(subnets())
def test_the_ends_of_a_subnet_and_its_gateway_are_nobodys(subnet: NodeSubnet) -> None:
    for address in (subnet.network[0], subnet.gateway, subnet.network[-1], subnet.network[-1] + 1):
        assert not subnet.has(address)
    assert subnet.has(subnet.network[-2])
    assert subnet.has(subnet.network[2])


@pytest.mark.parametrize(
    "text",
    [
        *("", "10.0.0.0", "10.0.0.1/24", "10.0.0.0/7", "10.0.0.0/31", "10.0.0.0/32", "fd00::/64", "x/24"),
        *("127.0.0.0/8", "224.0.0.0/24", "240.0.0.0/8", "0.0.0.0/8"),
    ],
)
def test_what_is_no_network_for_containers_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        NodeSubnet(text)
    assert caught.value.field == "network.subnet"


@given(subnets(), KEYS, st.lists(st.integers(0), min_size=2, max_size=20))
def test_names_and_hardware_addresses_tell_addresses_apart(
    subnet: NodeSubnet, key: str, numbers: list[int]
) -> None:
    names = KernelNames(key)
    addresses = {subnet.address(number % subnet.size) for number in numbers} | {subnet.gateway}
    links = {names.link(address) for address in addresses}
    assert len(links) == len(addresses)
    assert all(names.is_link(link) and len(link) <= 15 for link in links)
    assert not names.is_link(names.bridge)
    assert len(names.bridge) <= 15
    macs = {mac_of(address) for address in addresses}
    assert len(macs) == len(addresses)
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs)  # local, and of one machine


@given(KEYS, KEYS)
def test_skerrys_with_different_keys_share_no_name(one: str, two: str) -> None:
    if one != two:
        mine, theirs = KernelNames(one), KernelNames(two)
        assert not mine.is_link(theirs.link(IPv4Address("10.0.0.2")))
        assert mine.bridge != theirs.bridge
        assert mine.table != theirs.table


@given(KEYS)
def test_the_group_of_links_to_be_removed_is_never_the_one_that_all_links_are_in(key: str) -> None:
    assert 0 < KernelNames(key).doomed_group < 2**31


@pytest.mark.parametrize("key", ["", "1234567", "123456789", "1234567G", "1234567;"])
def test_a_key_is_eight_hex_digits(key: str) -> None:
    with pytest.raises(ValueError, match="8 hex digits"):
        KernelNames(key)


@given(subnets(), st.lists(st.booleans(), max_size=60))
def test_no_address_is_ever_given_twice(subnet: NodeSubnet, takes: list[bool]) -> None:
    addresses = AddressAllocator(subnet)
    held: list[IPv4Address] = []
    for take in takes:
        if take and len(held) < subnet.size:
            given_out = addresses.allocate()
            assert given_out not in held
            assert subnet.has(given_out)
            held.append(given_out)
        elif take:
            with pytest.raises(errors.ResourcesExhausted, match=str(subnet.network)):
                addresses.allocate()
        elif held:
            addresses.release(held.pop(0))
        assert addresses.free == subnet.size - len(held)


def test_an_address_that_was_given_back_rests_while_others_are_free() -> None:
    addresses = AddressAllocator(NodeSubnet("10.0.0.0/29"))
    first = addresses.allocate()
    addresses.release(first)
    later = [addresses.allocate() for _ in range(4)]
    assert first not in later
    assert addresses.allocate() == first


def test_claimed_addresses_are_passed_over_and_cannot_be_claimed_twice() -> None:
    addresses = AddressAllocator(NodeSubnet("10.0.0.0/29"))
    for last in (2, 4):
        addresses.claim(IPv4Address(f"10.0.0.{last}"))
    assert [str(addresses.allocate()) for _ in range(3)] == ["10.0.0.3", "10.0.0.5", "10.0.0.6"]
    with pytest.raises(ValueError, match=r"10\.0\.0\.2"):
        addresses.claim(IPv4Address("10.0.0.2"))


def test_no_address_is_given_out_whose_link_is_called_as_that_of_another_subnet() -> None:
    addresses = AddressAllocator(NodeSubnet("10.0.0.0/29"))
    other = IPv4Address("172.0.0.3")
    addresses.claim(other)
    addresses.claim(IPv4Address("172.0.1.3"))  # no link here is called so
    assert [str(addresses.allocate()) for _ in range(3)] == ["10.0.0.2", "10.0.0.4", "10.0.0.5"]
    addresses.release(other)
    assert [str(addresses.allocate()) for _ in range(2)] == ["10.0.0.6", "10.0.0.3"]


def test_owners_with_rules_begin_half_way_round_and_use_every_free_address() -> None:
    addresses = AddressAllocator(NodeSubnet("10.0.0.0/29"))
    assert list(map(str, addresses.upcoming(3, has_rules=True))) == ["10.0.0.4", "10.0.0.5", "10.0.0.6"]
    assert str(addresses.allocate(has_rules=True)) == "10.0.0.4"
    assert [str(addresses.allocate()) for _ in range(3)] == ["10.0.0.2", "10.0.0.3", "10.0.0.5"]
    assert list(map(str, addresses.upcoming(3, has_rules=True))) == ["10.0.0.6"]
    assert str(addresses.allocate(has_rules=True)) == "10.0.0.6"
    with pytest.raises(errors.ResourcesExhausted):
        addresses.allocate(has_rules=True)


def test_a_subnet_that_nobody_named_is_the_same_for_the_same_key() -> None:
    chosen = choose("0000abcd", [])
    assert choose("0000abcd", []) == chosen
    assert IPv4Network(chosen).subnet_of(IPv4Network("10.64.0.0/10"))
    assert choose("0000abce", []) != chosen


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2**22 - 1), max_size=20))
def test_a_subnet_that_nobody_named_is_never_one_that_is_taken(key: int, paths: list[int]) -> None:
    taken = [IPv4Network((int(IPv4Address("10.64.0.0")) + (place & ~0xFFF), 20)) for place in paths]
    chosen = IPv4Network(choose(f"{key:08x}", taken))
    assert not any(chosen.overlaps(each) for each in taken)


def test_with_no_subnet_left_one_must_be_named() -> None:
    with pytest.raises(errors.Unavailable, match=r"network\.subnet"):
        choose("00000000", [IPv4Network("10.0.0.0/8")])


def test_the_subnet_of_an_address_that_is_in_none_is_an_error_that_a_thread_can_report() -> None:
    """A `StopIteration` would be lost on its way, and whoever awaits the thread would wait for ever."""
    subnets = BridgeSubnets(NodeSubnet("10.0.0.0/24"))
    assert str(subnets.of(IPv4Address("10.0.0.2"))) == "10.0.0.0/24"
    with pytest.raises(LookupError, match=r"10\.0\.1\.2 is in none of 10\.0\.0\.0/24"):
        asyncio.run(asyncio.to_thread(subnets.of, IPv4Address("10.0.1.2")))
