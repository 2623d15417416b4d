"""Allocates addresses of containers; a released one is reused as late as possible.

`skerry.node.network.namespace_pool` allocates one for each namespace, releases it when that is removed, and
claims those of adopted attachments. It goes round the subnet, so that traffic for the previous owner of an
address does not reach the next one soon. Owners with rules of their own begin half-way round: these rules
stay with the address for the next such owner (`skerry.node.network.firewall`), and others rarely meet them.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from itertools import islice

from skerry.model import errors
from skerry.node.network.subnets import NodeSubnet

_LINK_BITS = 0xFFFFFF  # the part of an address in the name of its link


class AddressAllocator:
    """The addresses of `subnet`, without the gateway's."""

    def __init__(self, subnet: NodeSubnet) -> None:
        self._subnet = subnet
        self._used: set[int] = set()
        # By whether the owner has rules of its own.
        self._next = {False: 0, True: subnet.size // 2}

    def claim(self, address: IPv4Address) -> None:
        """Allocate exactly this one. For an address of another subnet, allocate the one whose link would have
        the same name (`KernelNames.link`), if there is one."""
        number = self._number(address)
        if number is not None and number in self._used:
            raise ValueError(f"{address} is in use")
        if number is not None:
            self._used.add(number)

    def allocate(self, *, has_rules: bool = False) -> IPv4Address:
        """The next free one after the last that was allocated to such an owner."""
        number = next(self._free_numbers(has_rules), None)
        if number is None:
            raise errors.ResourcesExhausted(
                f"all {self._subnet.size} addresses of {self._subnet} are in use; remove a container, or "
                "choose a wider network with the setting network.subnet"
            )
        self._next[has_rules] = number + 1
        self._used.add(number)
        return self._subnet.address(number)

    def upcoming(self, count: int, *, has_rules: bool) -> list[IPv4Address]:
        """Those that `allocate` will return next, at most `count`."""
        return [self._subnet.address(number) for number in islice(self._free_numbers(has_rules), count)]

    def _free_numbers(self, has_rules: bool) -> Iterator[int]:
        first, size = self._next[has_rules], self._subnet.size
        numbers = ((first + offset) % size for offset in range(size))
        return (number for number in numbers if number not in self._used)

    def release(self, address: IPv4Address) -> None:
        if (number := self._number(address)) is not None:
            self._used.discard(number)

    def _number(self, address: IPv4Address) -> int | None:
        first_byte, link_bits = int(self._subnet.gateway) & ~_LINK_BITS, int(address) & _LINK_BITS
        same_link = IPv4Address(first_byte | link_bits)
        return self._subnet.number(same_link) if self._subnet.has(same_link) else None

    @property
    def free(self) -> int:
        """How many are free."""
        return self._subnet.size - len(self._used)
