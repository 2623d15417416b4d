"""Addresses and networks of them."""

from __future__ import annotations

import ipaddress

import pytest

from skerry.kit.networks import is_within, plain_address

NETWORKS = (ipaddress.ip_network("192.0.2.0/29"), ipaddress.ip_network("2001:db8::/64"))


@pytest.mark.parametrize(
    ("text", "is_in"),
    [
        ("192.0.2.7", True),
        ("192.0.2.8", False),
        ("::ffff:192.0.2.7", True),
        ("::ffff:192.0.2.8", False),
        ("2001:db8::1", True),
        ("2001:db8::1%eth0", True),
        ("2001:db8:0:1::1", False),
        ("unix", False),
        ("", False),
        ("192.0.2.7, 10.0.0.1", False),
    ],
)
def test_an_address_is_in_a_network_however_it_is_spelt(text: str, is_in: bool) -> None:
    assert is_within(text, NETWORKS) is is_in
    assert not is_within(text, ())


def test_an_address_has_one_spelling() -> None:
    assert plain_address("::ffff:192.0.2.7") == "192.0.2.7"
    assert plain_address("2001:DB8:0::1%eth0") == "2001:db8::1"
    assert plain_address("unix") == "unix"
