"""Decides which hosts a pull may contact: those in a zone of the network, and those that the settings list.

This machine may be able to reach what others cannot: hosts behind a firewall, services without
authentication. For a guest only public hosts are contacted; and no registry may send us further inside than
it is itself (`registry_http`). Names are judged by their addresses, at each connection
(`skerry.kit.guarded_resolver`); addresses in URLs by themselves.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from skerry.kit.address_zones import AddressZone, zones_of
from skerry.model import errors

_DEFAULT_PORTS = frozenset({80, 443})

_FOR_GUESTS = (
    "{host} is not public, and images of buyers come only from public registries; "
    "use one, or have the provider list it in the setting market.guest_registries"
)


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
