"""Published ports and the way out, as rules in the kernel.

Keeps what is published in memory, and the kernel's table in step with it: each change is one transaction,
and changes that come together share one. If the table is not what it should be, because somebody flushed
all rules of the machine, it is written anew from memory. The text of the rules is
`skerry.node.network.rules`'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address

import structlog

from skerry.kit import jsonio
from skerry.model import errors
from skerry.model.ports import PortMapping, Protocol
from skerry.node.network import conntrack, rules
from skerry.node.network.batches import Batches
from skerry.node.network.programs import Programs
from skerry.node.network.rules import Door, Doors, Room
from skerry.node.network.subnets import Names, Subnet

log = structlog.get_logger(__name__)

_CHECK_S = 30.0
_Listing = dict[str, list[dict[str, dict[str, object]]]]


@dataclass(frozen=True, slots=True)
class _Change:
    """Doors that come and go; `is_doubtful` if the kernel's table may not be what we think."""

    come: dict[Door, Room] = field(default_factory=dict)
    gone: frozenset[Door] = frozenset()
    is_doubtful: bool = False


class Firewall:
    """One table of rules."""

    def __init__(self, programs: Programs, names: Names, subnet: Subnet) -> None:
        self._programs = programs
        self._names = names
        self._subnet = subnet
        self._doors: dict[Door, Room] = {}
        self._written = ""  # the table as nft lists it, but for the doors
        self._batches = Batches(self._change)

    def replace(self, doors: Doors) -> None:
        """The table as it must be with `doors` published, whatever it was before. Blocks."""
        self._programs.nft(rules.write_table(self._names, self._subnet, doors))
        self._doors = dict(doors)
        self._written = self._list()

    def remove(self) -> None:
        """No table any more. Blocks."""
        self._programs.nft(rules.write_removal(self._names))
        self._doors = {}

    async def publish(self, address: IPv4Address, mappings: Iterable[PortMapping]) -> None:
        """Ports of the machine lead to `address` when this returns."""
        if doors := rules.doors_of(address, mappings):
            await self._batches.do(_Change(come=doors))

    async def withdraw(self, mappings: Iterable[PortMapping]) -> None:
        """They lead nowhere when this returns."""
        if doors := frozenset((each.source, each.protocol) for each in mappings):
            await self._batches.do(_Change(gone=doors))

    async def run(self) -> None:
        """Look now and then whether the table is what it should be, for ever."""
        while True:
            await asyncio.sleep(_CHECK_S)
            await self.check()

    async def check(self) -> None:
        """Write the table anew if somebody removed it or changed its rules."""
        await self._batches.do(_Change(is_doubtful=True))

    async def drain(self) -> None:
        await self._batches.drain()

    def hindrances(self) -> list[str]:
        """Rules of others that keep packets from containers, in words. Blocks."""
        try:
            listing = jsonio.decode(self._programs.nft_list("chains"), _Listing)
        except (errors.Unavailable, jsonio.Malformed) as error:
            log.warning("network.other_rules_not_read", error=str(error))
            return []
        chains = [entry["chain"] for entry in listing.get("nftables", []) if "chain" in entry]
        return [
            f"the chain {chain['name']} of the table {chain['family']} {chain['table']} drops forwarded "
            "packets unless a rule of it accepts them: containers reach nobody beyond this machine, and "
            f"nobody reaches them, before it accepts what comes from and goes to {self._names.bridge}"
            for chain in chains
            if chain.get("hook") == "forward"
            and chain.get("policy") == "drop"
            and chain.get("family") in ("ip", "inet")
            and chain.get("table") != self._names.table
        ]

    def _list(self) -> str:
        try:
            return self._programs.nft_list("table", "ip", self._names.table)
        except errors.Unavailable:
            return ""  # it is gone, or cannot be looked at

    def _change(self, changes: list[_Change]) -> None:
        before, after = self._doors, dict(self._doors)
        for change in changes:
            for door in change.gone:
                after.pop(door, None)
            after |= change.come
        if any(change.is_doubtful for change in changes) and self._list() != self._written:
            log.warning("network.rules_lost", table=self._names.table)
            self.replace(after)
        elif text := rules.write_changes(self._names, before, after):
            try:
                self._programs.nft(text)
            except errors.Unavailable as error:  # all or nothing of it: the table is not what we think
                log.warning("network.rules_lost", table=self._names.table, error=error.message)
                self.replace(after)
        self._doors = after
        moved = before.items() ^ after.items()
        if ports := {port for (port, protocol), _ in moved if protocol is Protocol.UDP}:
            conntrack.forget_udp(ports, self._subnet.network)
