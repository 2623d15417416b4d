"""Which hosts may be spoken to on behalf of strangers."""

from __future__ import annotations

import ipaddress
import socket
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit.address_zones import is_public
from skerry.model import errors
from skerry.node.images.registry_policy import RegistryPolicy

PUBLIC = ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
PRIVATE = [
    "127.0.0.1",
    "127.9.9.9",
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.251",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fd00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "2002:7f00:1::",
    "2002:a00:1::",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))
    RegistryPolicy(()).check("example.org", 443, [address])


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_not_everybody_reaches_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    with pytest.raises(errors.FailedPrecondition, match="is not public"):
        RegistryPolicy(()).check("example.org", 443, [address])
    with pytest.raises(errors.FailedPrecondition, match=r"market\.guest_registries"):
        RegistryPolicy(()).check_url(f"[{address}]" if ":" in address else address, 443)


@given(st.ip_addresses(v=4))
def test_no_other_way_to_write_an_address_makes_it_public(address: ipaddress.IPv4Address) -> None:
    for prefix, shift in (("::ffff:0:0", 0), ("64:ff9b::", 0), ("2002::", 80)):
        dressed = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) + (int(address) << shift))
        assert is_public(dressed) == is_public(address)


def test_a_name_that_leads_to_several_addresses_must_be_public_with_all_of_them() -> None:
    with pytest.raises(errors.FailedPrecondition):
        RegistryPolicy(()).check("example.org", 443, ["8.8.8.8", "10.0.0.1"])


def test_the_addresses_of_this_machine_are_not_public_even_if_they_look_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = SimpleNamespace(family=socket.AF_INET, address="8.8.4.4")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [mine]})
    RegistryPolicy(()).check("example.org", 443, ["8.8.8.8"])
    with pytest.raises(errors.FailedPrecondition):
        RegistryPolicy(()).check("example.org", 443, ["8.8.4.4"])


def test_names_in_urls_are_judged_by_where_they_lead_and_not_before() -> None:
    RegistryPolicy(()).check_url("localhost", 443)
    RegistryPolicy(()).check_url("registry.example.org", 443)


@pytest.mark.parametrize(
    ("listed", "host", "port", "is_let"),
    [
        ("registry.lan", "registry.lan", 443, True),
        ("registry.lan", "Registry.LAN.", 443, True),
        ("registry.lan", "registry.lan", 5000, False),
        ("registry.lan:5000", "registry.lan", 5000, True),
        ("registry.lan:5000", "registry.lan", 443, False),
        ("registry.lan:*", "registry.lan", 5000, True),
        ("*.lan", "registry.lan", 443, True),
        ("*.lan", "registry.lan.evil.example", 443, False),
        ("127.0.0.1:*", "127.0.0.1", 5000, True),
        ("[::1]:5000", "::1", 5000, True),
    ],
)
def test_a_listed_host_may_be_anywhere(listed: str, host: str, port: int, is_let: bool) -> None:
    try:
        RegistryPolicy([listed]).check(host, port, ["127.0.0.1"])
    except errors.FailedPrecondition:
        assert not is_let
    else:
        assert is_let
