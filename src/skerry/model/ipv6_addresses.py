"""IPv6 addresses of containers, services and nodes: each follows from an IPv4 address. Pure.

The IPv4 address is the end of the IPv6 one, behind a prefix that is the same in all clouds: nothing is
allocated, stored or sent for it, and whatever is known of an IPv4 address (its node, its namespace, who may
connect to it) is known of the IPv6 one. Whether a container has one is said by its node.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

# Unique local addresses with a random global id, so that it is no network of anybody else (RFC 4193).
CLOUD_PREFIX: Final = IPv6Network("fda8:5e7c:f8fa::/96")


def ipv6_of(address: IPv4Address) -> IPv6Address:
    """The IPv6 address of whoever has `address`."""
    return CLOUD_PREFIX.network_address + int(address)


def ipv6_network_of(network: IPv4Network) -> IPv6Network:
    """The IPv6 addresses of `network`."""
    return IPv6Network((ipv6_of(network.network_address), CLOUD_PREFIX.prefixlen + network.prefixlen))


def ipv4_of(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that `address` follows from; None: it is of no cloud."""
    if address not in CLOUD_PREFIX:
        return None
    return IPv4Address(int(address) - int(CLOUD_PREFIX.network_address))
