"""From where an address can be reached: from everywhere, a private network, this machine, or one link.

For programs that connect to hosts which others name (`skerry.kit.guarded_resolver`).
"""

from __future__ import annotations

import enum
import ipaddress
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network

import psutil

_NAT64 = IPv6Network("64:ff9b::/96")

Address = IPv4Address | IPv6Address


class AddressZone(enum.IntEnum):
    """From where an address can be reached: the higher, the fewer hosts can."""

    PUBLIC = 0
    PRIVATE = 1  # a private network
    MACHINE = 2  # this machine: its loopback, and all of its addresses
    LINK = 3  # only the same link, such as the metadata service of a cloud

    @property
    def leads_to(self) -> AddressZone:
        """The innermost zone that a host in this one may send us to."""
        return AddressZone.PRIVATE if self is AddressZone.LINK else self


def is_misspelt_address(host: str) -> bool:
    """True for an address in no canonical spelling, such as `127.1`, `2130706433`, `012.0.0.1` or `0x7f.1`.
    Some programs parse them as an address and some as a name, so the check could be bypassed."""
    if not (host.replace(".", "").isdigit() or _is_numeric(host)):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _is_numeric(host: str) -> bool:
    """True if C programs take `host` for an IPv4 address."""
    try:
        socket.inet_aton(host)
    except (OSError, ValueError):
        return False
    return True


def zones_of(addresses: Iterable[str]) -> list[AddressZone]:
    """The zone of each address."""
    own = _own_addresses()
    return [_zone_of(_unmapped(_parse(each)), own) for each in addresses]


def _zone_of(address: Address, own: set[Address]) -> AddressZone:
    if address.is_loopback or address.is_unspecified or address in own:
        return AddressZone.MACHINE
    if address.is_link_local:
        return AddressZone.LINK
    return AddressZone.PUBLIC if is_public(address) else AddressZone.PRIVATE


def is_public(address: Address) -> bool:
    """True if `address` is globally reachable by its range."""
    unmapped = _unmapped(address)
    return unmapped.is_global and not unmapped.is_multicast


def _unmapped(address: Address) -> Address:
    """The IPv4 address that an IPv6 address embeds, if it does."""
    if isinstance(address, IPv4Address):
        return address
    teredo = address.teredo
    inner = address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)
    if inner is None and address in _NAT64:
        inner = IPv4Address(int(address) & 0xFFFFFFFF)
    return inner or address


def _parse(text: str) -> Address:
    return ipaddress.ip_address(text.partition("%")[0])


def _own_addresses() -> set[Address]:
    """Addresses of this machine: a firewall in front of it does not protect them from here."""
    return {
        _parse(each.address)
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family.name in ("AF_INET", "AF_INET6")
    }
