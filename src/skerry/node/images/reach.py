"""Where images of strangers may come from: hosts with public addresses, and those that the settings name.

A stranger's image is pulled by this machine, which may stand where the stranger does not: behind a firewall,
beside a registry that asks nobody who they are. So no host is spoken to for them that not anybody could
speak to. Names are judged by the addresses they lead to, at each connection anew (`resolving`); addresses in
URLs, also in those that a registry sends us to, by themselves (`transport`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network

import psutil

from skerry.model import errors

_NAT64 = IPv6Network("64:ff9b::/96")
_DEFAULT_PORTS = frozenset({80, 443})

Address = IPv4Address | IPv6Address


class Reach:
    """What may be spoken to; `listed` are patterns of HOST[:PORT] for what is not public."""

    def __init__(self, listed: Iterable[str]) -> None:
        self._listed = [re.compile(re.escape(each.lower()).replace(r"\*", ".*")) for each in listed]

    def check_url(self, host: str, port: int) -> None:
        """Raise Refused if `host` is an address that may not be spoken to. A name may yet lead to one."""
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return
        self.check(host, port, [str(address)])

    def check(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """Raise Refused unless all `addresses` that `host` has may be spoken to."""
        if self._is_listed(host, port):
            return
        own = _own_addresses()
        if not all(is_public(each) and each not in own for each in map(_parse, addresses)):
            raise errors.Refused(
                f"{host} is not in public reach, and images of buyers come only from registries that are; "
                "use one that is, or let the provider name it in the setting market.guest_registries"
            )

    def _is_listed(self, host: str, port: int) -> bool:
        name = host.lower().rstrip(".")
        name = f"[{name}]" if ":" in name and not name.startswith("[") else name
        spellings = [f"{name}:{port}", *([name] if port in _DEFAULT_PORTS else [])]
        return any(pattern.fullmatch(each) for pattern in self._listed for each in spellings)


def is_public(address: Address) -> bool:
    """True if the whole world can reach `address`, as far as that is in its digits."""
    if isinstance(address, IPv6Address):  # which may be another way to write one of IPv4
        teredo = address.teredo
        inner = address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else None)
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast


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
