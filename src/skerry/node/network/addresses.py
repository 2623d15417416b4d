"""Addresses for containers: each is given to one at a time, and one that was given back rests for a while.

`skerry.node.network.namespace_pool` takes one for each namespace, gives it back when that is gone, and claims
those of attachments that go on. Goes round the subnet, so that whoever still speaks to the last owner of an
address does not reach the next one at once.
"""

from __future__ import annotations

from ipaddress import IPv4Address

from skerry.model import errors
from skerry.node.network.subnets import NodeSubnet

_LINK_BITS = 0xFFFFFF  # of an address, those in the name of its link


class AddressAllocator:
    """The addresses of `subnet`, without the gateway's."""

    def __init__(self, subnet: NodeSubnet) -> None:
        self._subnet = subnet
        self._taken: set[int] = set()
        self._next = 0

    def claim(self, address: IPv4Address) -> None:
        """Take exactly this one. Of an address of another subnet, take the one whose link would be called
        the same (`KernelNames.link`), if there is one."""
        number = self._number(address)
        if number is not None and number in self._taken:
            raise ValueError(f"{address} is taken")
        if number is not None:
            self._taken.add(number)

    def take(self) -> IPv4Address:
        """The next free one after the last that was taken."""
        if len(self._taken) >= self._subnet.size:
            raise errors.ResourcesExhausted(
                f"all {self._subnet.size} addresses of {self._subnet} are in use; remove a container, or "
                "choose a wider network with the setting network.subnet"
            )
        while (number := self._next % self._subnet.size) in self._taken:
            self._next = number + 1
        self._next = number + 1
        self._taken.add(number)
        return self._subnet.address(number)

    def give_back(self, address: IPv4Address) -> None:
        if (number := self._number(address)) is not None:
            self._taken.discard(number)

    def _number(self, address: IPv4Address) -> int | None:
        first_byte, others = int(self._subnet.gateway) & ~_LINK_BITS, int(address) & _LINK_BITS
        same_link = IPv4Address(first_byte | others)
        return self._subnet.number(same_link) if self._subnet.has(same_link) else None

    @property
    def free(self) -> int:
        """How many can be taken now."""
        return self._subnet.size - len(self._taken)
