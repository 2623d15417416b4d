"""Decides which hosts a pull may contact: those in a zone of the network, and those that the settings list.

This machine may be able to reach what others cannot: hosts behind a firewall, services without
authentication. For a guest only public hosts are contacted; and no registry may send us further inside than
it is itself (`registry_http`). Names are judged by their addresses, at each connection (`guarded_resolver`);
addresses in URLs by themselves.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network

import psutil

from skerry.model import errors

_NAT64 = IPv6Network("64:ff9b::/96")
_DEFAULT_PORTS = frozenset({80, 443})

Address = IPv4Address | IPv6Address

_FOR_GUESTS = (
    "{host} is not public, and images of buyers come only from public registries; "
    "use one, or have the provider list it in the setting market.guest_registries"
)


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


class RegistryPolicy:
    """Hosts that may be contacted: in `zone` or further outside, and `listed`, patterns of HOST[:PORT]."""

    def __init__(
        self, listed: Iterable[str], zone: AddressZone = AddressZone.PUBLIC, *, refusal: str = _FOR_GUESTS
    ) -> None:
        """`refusal` is the error for a `{host}` that is forbidden."""
        self._listed = [re.compile(re.escape(each.lower()).replace(r"\*", ".*")) for each in listed]
        self._zone = zone
        self._refusal = refusal

    def check_url(self, host: str, port: int) -> None:
        """Raise FailedPrecondition if `host` is a forbidden address. A name is checked when it is
        resolved."""
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return
        self.check(host, port, [str(address)])

    def check(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """Raise FailedPrecondition unless all `addresses` of `host` are allowed."""
        if self._is_listed(host, port):
            return
        if any(each > self._zone for each in zones_of(addresses)):
            raise errors.FailedPrecondition(self._refusal.format(host=host))

    def _is_listed(self, host: str, port: int) -> bool:
        name = host.lower().rstrip(".")
        name = f"[{name}]" if ":" in name and not name.startswith("[") else name
        spellings = [f"{name}:{port}", *([name] if port in _DEFAULT_PORTS else [])]
        return any(pattern.fullmatch(each) for pattern in self._listed for each in spellings)


def is_misspelt_address(host: str) -> bool:
    """True for digits and dots that are no canonical address, such as `127.1`, `2130706433` or `012.0.0.1`.
    Some programs parse them as an address and some as a name, so the check could be bypassed."""
    if not host.replace(".", "").isdigit():
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


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
