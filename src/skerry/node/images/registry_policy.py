"""Which hosts a pull may speak to: those in a zone of the network, and those that the settings name.

An image is pulled by this machine, which may stand where others do not: behind a firewall, beside a service
that asks nobody who they are. For a stranger no host is spoken to that not anybody could speak to; and no
registry sends us further inside than it is itself (`registry_http`). Names are judged by the addresses they
lead to, at each connection anew (`guarded_resolver`); addresses in URLs by themselves.
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
    "{host} is not in public reach, and images of buyers come only from registries that are; "
    "use one that is, or let the provider name it in the setting market.guest_registries"
)


class AddressZone(enum.IntEnum):
    """From where an address is reached: the higher, the fewer reach it."""

    PUBLIC = 0
    PRIVATE = 1  # a network of somebody's own
    MACHINE = 2  # this machine: its loopback, and every address that it has
    LINK = 3  # what only answers on the same cable, such as the metadata service of a cloud

    @property
    def leads_to(self) -> AddressZone:
        """The innermost zone that a host of this one may send us to."""
        return AddressZone.PRIVATE if self is AddressZone.LINK else self


class RegistryPolicy:
    """What may be spoken to: addresses as far inside as `zone`, and `listed`, patterns of HOST[:PORT]."""

    def __init__(
        self, listed: Iterable[str], zone: AddressZone = AddressZone.PUBLIC, *, refusal: str = _FOR_GUESTS
    ) -> None:
        """`refusal` is what to say of a `{host}` that is not in it."""
        self._listed = [re.compile(re.escape(each.lower()).replace(r"\*", ".*")) for each in listed]
        self._zone = zone
        self._refusal = refusal

    def check_url(self, host: str, port: int) -> None:
        """Raise FailedPrecondition if `host` is an address that may not be spoken to. A name may yet lead to
        one."""
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return
        self.check(host, port, [str(address)])

    def check(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """Raise FailedPrecondition unless all `addresses` that `host` has may be spoken to."""
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
    """True for digits and dots that are no address as everybody writes them, such as `127.1`, `2130706433` or
    `012.0.0.1`. Some programs take them for one and some for a name, so nobody could say what was judged."""
    if not host.replace(".", "").isdigit():
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def zones_of(addresses: Iterable[str]) -> list[AddressZone]:
    """The zone of each; empty for none."""
    own = _own_addresses()
    return [_zone_of(_plain(_parse(each)), own) for each in addresses]


def _zone_of(address: Address, own: set[Address]) -> AddressZone:
    if address.is_loopback or address.is_unspecified or address in own:
        return AddressZone.MACHINE
    if address.is_link_local:
        return AddressZone.LINK
    return AddressZone.PUBLIC if is_public(address) else AddressZone.PRIVATE


def is_public(address: Address) -> bool:
    """True if the whole world can reach `address`, as far as that is in its digits."""
    plain = _plain(address)
    return plain.is_global and not plain.is_multicast


def _plain(address: Address) -> Address:
    """The address of IPv4 that one of IPv6 is another way to write, if it is."""
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
    """Those of this machine: from here, a firewall in front of it does not count."""
    return {
        _parse(each.address)
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family.name in ("AF_INET", "AF_INET6")
    }
