"""What is closed of IPv4 is closed of IPv6, also by a translator."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, IPv6Network

import pytest

from skerry.model.address_ranges import METADATA, METADATA6, PRIVATE, PRIVATE6
from skerry.model.ipv6_addresses import CLOUD_PREFIX


def is_in(address: str, networks: tuple[str, ...]) -> bool:
    return any(IPv6Address(address) in IPv6Network(each) for each in networks)


@pytest.mark.parametrize(("networks", "networks6"), [(METADATA, METADATA6), (PRIVATE, PRIVATE6)])
def test_addresses_behind_a_translator_are_as_closed_as_others(
    networks: tuple[str, ...], networks6: tuple[str, ...]
) -> None:
    for network in map(IPv4Network, networks):
        for address in (network[0], network[-1]):
            assert is_in(f"64:ff9b::{address}", networks6)


@pytest.mark.parametrize("address", ["fd00:ec2::254", "fd20:ce::254", "fe80::a9fe:a9fe", "fd00:c1::1"])
def test_metadata_services_are_closed(address: str) -> None:
    assert is_in(address, METADATA6)


@pytest.mark.parametrize("address", ["::1", "::ffff:10.0.0.1", "fd00::1", "ff02::1", "2002::1", "fec0::1"])
def test_what_is_no_public_address_is_private(address: str) -> None:
    assert is_in(address, PRIVATE6)


@pytest.mark.parametrize("address", ["2606:4700::1111", "2001:4860::8888", "64:ff9b::8.8.8.8", "2a00::1"])
def test_public_addresses_are_not(address: str) -> None:
    assert not is_in(address, (*PRIVATE6, *METADATA6))


def test_addresses_of_a_cloud_are_private() -> None:
    assert any(CLOUD_PREFIX.subnet_of(IPv6Network(each)) for each in PRIVATE6)
