"""Addresses and networks of them, as values. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def plain_address(text: str) -> str:
    """One spelling for each address: IPv4 inside IPv6 is IPv4, and a zone is left out; what is none stays."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)


def is_within(text: str, networks: Iterable[Network]) -> bool:
    """Whether an address is in one of these networks; what is no address is in none."""
    try:
        address = ipaddress.ip_address(plain_address(text))
    except ValueError:
        return False
    return any(address in network for network in networks)
