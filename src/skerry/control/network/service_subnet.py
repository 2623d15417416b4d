"""The range of virtual addresses: checks of the setting, and the choice of a free address. Pure.

An address is chosen by the id of its service, and not in order: two clouds with the same range on one machine
seldom choose the same, and an address that was given up is not the next to be chosen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Network

from skerry.model import errors
from skerry.model.ids import ServiceId

FIELD = "fleet.service_subnet"
_WIDEST, _NARROWEST = 12, 28
# Closed to isolated containers and by the egress `internet`, wherever the range is.
_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")))


class ServiceAddressPool:
    """The addresses of one range."""

    def __init__(self, text: str, nodes: str) -> None:
        """`nodes`: the pool of the subnets of nodes, which must not overlap. Raises Invalid."""
        try:
            network = IPv4Network(text)
        except ValueError as error:
            raise errors.Invalid(
                f"{FIELD} is no IPv4 network: {error}; write one such as 10.63.0.0/16", field=FIELD
            ) from None
        if not _WIDEST <= network.prefixlen <= _NARROWEST:
            raise errors.Invalid(
                f"{FIELD} must be a /{_WIDEST} to a /{_NARROWEST}, not a /{network.prefixlen}", field=FIELD
            )
        if not any(network.subnet_of(each) for each in _PRIVATE):
            raise errors.Invalid(
                f"{FIELD} must be part of {', '.join(map(str, _PRIVATE))}, which {network} is not",
                field=FIELD,
            )
        if network.overlaps(IPv4Network(nodes)):
            raise errors.Invalid(
                f"{FIELD} ({network}) overlaps fleet.subnets ({nodes}), from which containers have their "
                "addresses; set one of them to another network",
                field=FIELD,
            )
        self.network = network
        self._size = network.num_addresses - 2  # without those of the network and broadcasts

    def has(self, address: str) -> bool:
        """True if a service may have `address`."""
        try:
            return IPv4Address(address) in self.network
        except ValueError:
            return False

    def choose(self, service: ServiceId, is_free: Callable[[str], bool]) -> str:
        """A free address. Raises `ResourcesExhausted`."""
        for address in self._candidates(service):
            if is_free(address):
                return address
        raise errors.ResourcesExhausted(
            f"all {self._size} addresses of {self.network} are taken; delete services, or set {FIELD} to a "
            "wider network"
        )

    def _candidates(self, service: ServiceId) -> Iterator[str]:
        start = int.from_bytes(hashlib.blake2b(service.encode(), digest_size=8).digest(), "big")
        first = self.network.network_address + 1
        return (str(first + (start + number) % self._size) for number in range(self._size))
