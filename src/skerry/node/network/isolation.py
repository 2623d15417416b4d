"""Who is kept apart from everybody else, as rules in the kernel.

Keeps who that is in memory, and the kernel's tables in step with it; they are there only while they are
needed, so that a machine without strangers has not a rule more. If they are not what they should be, because
somebody flushed all rules of the machine, they are written anew. Where the kernel cannot do it, nobody is
kept apart and whoever asks for it is told. The text of the rules is `skerry.node.network.isolation_rules`'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

import structlog

from skerry.kit import json_codec
from skerry.kit.batching import Batcher
from skerry.model import errors
from skerry.node.network import isolation_rules
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.isolation_rules import IsolatedAttachment
from skerry.node.network.subnets import BridgeSubnets, KernelNames

log = structlog.get_logger(__name__)

_CHECK_S = 30.0
_Listing = dict[str, list[dict[str, dict[str, object]]]]


@dataclass(frozen=True, slots=True)
class _Change:
    """One who comes or goes; `is_doubtful` if the kernel's tables may not be what we think, `is_outdated` if
    they should be others."""

    come: IPv4Address | None = None
    gone: IPv4Address | None = None
    resolvers: tuple[str, ...] = ()  # with one who comes
    is_doubtful: bool = False
    is_outdated: bool = False


class NetworkIsolation:
    """The tables around those who are kept apart."""

    def __init__(
        self,
        programs: NetworkCommands,
        names: KernelNames,
        subnets: BridgeSubnets,
        closed: Iterable[IPv4Network],
    ) -> None:
        self._programs = programs
        self._names = names
        self._subnets = subnets
        self._closed = tuple(closed)
        self._apart = IsolatedAttachment()
        self._held: set[IPv4Address] = set()  # with those who come and go just now
        self._written: list[str] = []  # the tables as nft lists them, but for who is in them
        self._batches = Batcher(self._change)

    def replace(self, addresses: Iterable[IPv4Address], resolvers: Sequence[str]) -> None:
        """Exactly these are kept apart, whatever there was before. Blocks."""
        self._write(IsolatedAttachment(frozenset(addresses), tuple(resolvers)))
        self._held = set(self._apart.addresses)

    def holds(self, address: IPv4Address) -> bool:
        """True if `address` is kept apart, or may be: until its `end` has returned."""
        return address in self._held

    async def begin(self, address: IPv4Address, resolvers: Sequence[str]) -> None:
        """`address` is kept apart when this returns, but for `resolvers`. Raises Unavailable: it is not."""
        self._held.add(address)
        await self._batches.do(_Change(come=address, resolvers=tuple(resolvers)))

    async def end(self, address: IPv4Address) -> None:
        """It is as any other when this returns. Done even if the caller goes. Raises Unavailable."""
        await self._batches.do(_Change(gone=address))
        self._held.discard(address)

    async def run(self) -> None:
        """Look now and then whether the tables are what they should be, for ever."""
        while True:
            await asyncio.sleep(_CHECK_S)
            await self.check()

    async def rewrite(self) -> None:
        """Write the tables anew: the subnets are others. Raises Unavailable."""
        await self._batches.do(_Change(is_outdated=True))

    async def check(self) -> None:
        """Write the tables anew if somebody removed them or changed their rules."""
        if self._apart.addresses:
            await self._batches.do(_Change(is_doubtful=True))

    async def drain(self) -> None:
        await self._batches.drain()

    def _change(self, changes: list[_Change]) -> None:
        before, addresses, resolvers = self._apart, set(self._apart.addresses), self._apart.resolvers
        for change in changes:
            if change.come is not None:
                addresses.add(change.come)
                resolvers = change.resolvers
            if change.gone is not None:
                addresses.discard(change.gone)
        after = IsolatedAttachment(frozenset(addresses), resolvers)
        if (
            any(change.is_doubtful for change in changes)
            and before.addresses
            and self._list() != self._written
        ):
            log.warning("network.rules_lost", table=self._names.apart_table)
            self._write(after)
        elif (
            not before.addresses
            or not after.addresses
            or before.resolvers != after.resolvers
            or any(change.is_outdated for change in changes)
        ):
            self._write(after)
        elif text := isolation_rules.write_changes(self._names, before.addresses, after.addresses):
            try:
                self._programs.nft(text)
            except errors.Unavailable as error:  # all or nothing of it: the tables are not what we think
                log.warning("network.rules_lost", table=self._names.apart_table, error=error.message)
                self._write(after)
        self._apart = after

    def _write(self, after: IsolatedAttachment) -> None:
        if after.addresses:
            try:
                self._programs.nft(
                    isolation_rules.write_tables(self._names, self._subnets, self._closed, after)
                )
            except errors.Unavailable as error:
                raise errors.Unavailable(
                    f"containers cannot be kept apart from each other on this machine: {error.message}",
                    detail=error.detail,
                ) from None
            self._written = self._list()
        elif self._are_there():
            self._programs.nft(isolation_rules.write_removal(self._names))
        self._apart = after

    def _are_there(self) -> bool:
        """Asked first: a kernel may not know tables of bridges, and then there are none."""
        listing = json_codec.decode(self._programs.nft_list("tables"), _Listing)
        tables = [entry["table"] for entry in listing.get("nftables", []) if "table" in entry]
        return any(table.get("name") == self._names.apart_table for table in tables)

    def _list(self) -> list[str]:
        try:
            return [
                self._programs.nft_list("table", family, self._names.apart_table)
                for family in isolation_rules.FAMILIES
            ]
        except errors.Unavailable:
            return []  # they are gone, or cannot be looked at
