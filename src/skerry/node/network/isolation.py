"""Isolated networks of guest containers, as nftables rules.

Keeps the isolated addresses in memory, and updates the kernel's tables, which exist only while they are
needed. If they were altered, for example because somebody flushed the ruleset, they are written again. Where
the kernel does not support it, nothing is isolated and callers get an error.
`skerry.node.network.isolation_rules` has the text of the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network

import msgspec
import structlog

from skerry.kit.batching import Batcher
from skerry.model import errors
from skerry.node.network import isolation_rules
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.isolation_rules import IsolatedAddresses
from skerry.node.network.nft_tables import NftTables, check_forever
from skerry.node.network.rule_families import table_families
from skerry.node.network.subnets import BridgeSubnets, KernelNames

log = structlog.get_logger(__name__)


class _Change(msgspec.Struct, frozen=True):
    """An address to add or remove; `is_doubtful` if the kernel's tables may differ from memory, `is_outdated`
    if they must be rewritten."""

    added: IPv4Address | None = None
    removed: IPv4Address | None = None
    resolvers: tuple[str, ...] = ()  # of an address to add
    is_doubtful: bool = False
    is_outdated: bool = False


class NetworkIsolation:
    """The tables of isolated addresses."""

    def __init__(
        self,
        programs: NetworkCommands,
        names: KernelNames,
        subnets: BridgeSubnets,
        closed: Iterable[IPv4Network],
    ) -> None:
        self._names = names
        self._subnets = subnets
        self._closed = tuple(closed)
        self._isolated = IsolatedAddresses()
        self._pending_or_isolated: set[IPv4Address] = set()  # including those that are being added or removed
        self._tables = NftTables(programs, names.isolation_table, ())
        self._batches = Batcher(self._change)

    def replace(self, addresses: Iterable[IPv4Address], resolvers: Sequence[str]) -> None:
        """Isolate exactly these, whatever there was before. Blocks."""
        self._write(IsolatedAddresses(frozenset(addresses), tuple(resolvers)))
        self._pending_or_isolated = set(self._isolated.addresses)

    def may_be_isolated(self, address: IPv4Address) -> bool:
        """True if `address` is, or may be, isolated: until its `release` has returned."""
        return address in self._pending_or_isolated

    async def isolate(self, address: IPv4Address, resolvers: Sequence[str]) -> None:
        """Isolate `address`, except from `resolvers`; effective on return. Raises Unavailable: it is not
        isolated."""
        self._pending_or_isolated.add(address)
        await self._batches.do(_Change(added=address, resolvers=tuple(resolvers)))

    async def release(self, address: IPv4Address) -> None:
        """End the isolation; effective on return. Completes even if the caller is cancelled. Raises
        Unavailable."""
        await self._batches.do(_Change(removed=address))
        self._pending_or_isolated.discard(address)

    async def run(self) -> None:
        """Check the tables now and then, for ever."""
        await check_forever(self.check)

    async def rewrite(self) -> None:
        """Write the tables again for other subnets. Raises Unavailable."""
        await self._batches.do(_Change(is_outdated=True))

    async def check(self) -> None:
        """Write the tables again if they were removed or altered."""
        if self._isolated.addresses:
            await self._batches.do(_Change(is_doubtful=True))

    async def drain(self) -> None:
        await self._batches.drain()

    def _change(self, changes: list[_Change]) -> None:
        before, addresses, resolvers = self._isolated, set(self._isolated.addresses), self._isolated.resolvers
        for change in changes:
            if change.added is not None:
                addresses.add(change.added)
                resolvers = change.resolvers
            if change.removed is not None:
                addresses.discard(change.removed)
        after = IsolatedAddresses(frozenset(addresses), resolvers)
        is_doubtful = any(change.is_doubtful for change in changes)
        if (is_doubtful and before.addresses and self._tables.is_altered()) or (
            not before.addresses
            or not after.addresses
            or before.resolvers != after.resolvers
            or any(change.is_outdated for change in changes)
        ):
            self._write(after)
        elif text := isolation_rules.write_changes(
            self._names, before.addresses, after.addresses, self._tables.families
        ):
            self._tables.change(text, lambda: self._write(after))
        self._isolated = after

    def _write(self, after: IsolatedAddresses) -> None:
        self._tables.families = table_families(has_ipv6=self._subnets.has_ipv6)
        if after.addresses:
            try:
                self._tables.write(
                    isolation_rules.write_tables(self._names, self._subnets, self._closed, after)
                )
            except errors.Unavailable as error:
                raise errors.Unavailable(
                    f"containers cannot be isolated on this machine: {error.message}",
                    detail=error.detail,
                ) from None
        else:
            self._tables.delete()
        self._isolated = after
