"""Addresses for containers: each is given to one at a time, and one that was given back rests for a while.

`skerry.node.network.pool` takes one for each namespace, gives it back when that is gone, and claims those
of attachments that go on. Goes round the subnet, so that whoever still speaks to the last owner of an
address does not reach the next one at once.
"""

from __future__ import annotations

from ipaddress import IPv4Address

from skerry.model import errors
from skerry.node.network.subnets import Subnet


class Addresses:
    """The addresses of `subnet`, without the gateway's."""

    def __init__(self, subnet: Subnet) -> None:
        self._subnet = subnet
        self._taken: set[int] = set()
        self._next = 0

    def claim(self, address: IPv4Address) -> None:
        """Take exactly this one."""
        number = self._subnet.number(address)
        if number in self._taken or not self._subnet.has(address):
            raise ValueError(f"{address} is taken, or not of {self._subnet}")
        self._taken.add(number)

    def take(self) -> IPv4Address:
        """The next free one after the last that was taken."""
        if len(self._taken) >= self._subnet.room:
            raise errors.NoRoom(
                f"all {self._subnet.room} addresses of {self._subnet} are in use; remove a container, or "
                "choose a wider network with the setting network.subnet"
            )
        while (number := self._next % self._subnet.room) in self._taken:
            self._next = number + 1
        self._next = number + 1
        self._taken.add(number)
        return self._subnet.address(number)

    def give_back(self, address: IPv4Address) -> None:
        self._taken.discard(self._subnet.number(address))

    @property
    def free(self) -> int:
        """How many can be taken now."""
        return self._subnet.room - len(self._taken)
