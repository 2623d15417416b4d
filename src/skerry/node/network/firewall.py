"""Published ports, the way out and network policies, as rules in the kernel.

Keeps what is published, and who has which policy, in memory, and the kernel's tables in step with it: each
change is one transaction, and changes that come together share one. If the tables are not what they should
be, because somebody flushed all rules of the machine, they are written anew from memory. The text of the
rules is `skerry.node.network.port_rules`'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

import structlog

from skerry.kit import json_codec
from skerry.kit.batching import Batcher
from skerry.model import errors
from skerry.model.network import OPEN_POLICY, Ingress, NetworkPolicy
from skerry.model.ports import PortMapping, Protocol
from skerry.node.network import conntrack, port_rules
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.port_rules import (
    AddressRanges,
    ContainerPort,
    HostPort,
    NftTableContents,
    PublishedPorts,
)
from skerry.node.network.subnets import BridgeSubnets, KernelNames

log = structlog.get_logger(__name__)

NO_BRIDGE_FAMILY = (
    "functions cannot have a network: this kernel has no nftables for bridges (CONFIG_NF_TABLES_BRIDGE), "
    "without which others could call them; use a kernel that has them, or deploy functions with "
    "--network none"
)
_CHECK_S = 30.0
_Listing = dict[str, list[dict[str, dict[str, object]]]]


@dataclass(frozen=True, slots=True)
class _Change:
    """Doors and policies that come and go; `is_doubtful` if the kernel's tables may not be what we think,
    `is_outdated` if they should be others."""

    come: dict[HostPort, ContainerPort] = field(default_factory=dict)
    gone: frozenset[HostPort] = frozenset()
    policies: dict[IPv4Address, NetworkPolicy] = field(default_factory=dict)
    is_doubtful: bool = False
    is_outdated: bool = False


class Firewall:
    """The two tables of rules."""

    def __init__(
        self,
        programs: NetworkCommands,
        names: KernelNames,
        subnets: BridgeSubnets,
        ranges: AddressRanges,
        resolvers: Callable[[], tuple[str, ...]],
    ) -> None:
        """`resolvers` are the name servers of containers, looked at with every change."""
        self._programs = programs
        self._names = names
        self._subnets = subnets
        self._ranges = ranges
        self._resolvers = resolvers
        self._contents = NftTableContents()
        # Which policy an address is held to; None while it changes, or if nobody knows.
        self._policies: dict[IPv4Address, NetworkPolicy | None] = {}
        self._has_bridge_family = True
        self._written: list[str] = []  # the tables as nft lists them, but for their contents
        self._batches = Batcher(self._change)

    def open(self, host_ports: PublishedPorts, policies: Mapping[IPv4Address, NetworkPolicy]) -> None:
        """The tables as they must be with these, whatever they were before. Blocks."""
        contents = NftTableContents(host_ports, policies, self._resolvers())
        try:
            self._replace(contents)
        except errors.Unavailable as error:
            self._has_bridge_family = False
            self._replace(contents)
            log.warning("network.no_bridge_rules", error=error.message)
        self._policies = dict(policies)

    def _replace(self, contents: NftTableContents) -> None:
        self._programs.nft(
            port_rules.write_tables(
                self._names,
                self._subnets,
                self._ranges,
                contents,
                has_bridge_family=self._has_bridge_family,
            )
        )
        self._contents = contents
        self._written = self._list()

    def remove(self) -> None:
        """No tables any more. Blocks."""
        self._programs.nft(port_rules.write_removal(self._names, has_bridge_family=self._has_bridge_family))
        self._contents = NftTableContents()

    async def publish(self, address: IPv4Address, mappings: Iterable[PortMapping]) -> None:
        """Ports of the machine lead to `address` when this returns."""
        if host_ports := port_rules.published_ports(address, mappings):
            await self._batches.do(_Change(come=host_ports))

    async def withdraw(self, mappings: Iterable[PortMapping]) -> None:
        """They lead nowhere when this returns."""
        if host_ports := frozenset((each.source, each.protocol) for each in mappings):
            await self._batches.do(_Change(gone=host_ports))

    async def restrict(self, address: IPv4Address, policy: NetworkPolicy) -> None:
        """`address` is held to `policy`, and to no other, when this returns. Done even if the caller goes.
        Raises Unavailable."""
        if policy.ingress is Ingress.NODE and not self._has_bridge_family:
            raise errors.Unavailable(NO_BRIDGE_FAMILY)
        if self._policies.get(address, OPEN_POLICY) == policy:
            return
        self._policies[address] = None
        await self._batches.do(_Change(policies={address: policy}))
        self._policies[address] = policy
        if policy == OPEN_POLICY:
            del self._policies[address]

    def lacking(self) -> tuple[str, ...]:
        """What the kernel cannot do, in plain sentences; best empty."""
        return () if self._has_bridge_family else (NO_BRIDGE_FAMILY,)

    async def run(self) -> None:
        """Look now and then whether the tables are what they should be, for ever."""
        while True:
            await asyncio.sleep(_CHECK_S)
            await self.check()

    async def check(self) -> None:
        """Write the tables anew if somebody removed them or changed their rules; name servers too."""
        await self._batches.do(_Change(is_doubtful=True))

    async def rewrite(self) -> None:
        """Write the tables anew: the subnets are others. Raises Unavailable."""
        await self._batches.do(_Change(is_outdated=True))

    async def drain(self) -> None:
        await self._batches.drain()

    def hindrances(self) -> list[str]:
        """Rules of others that keep packets from containers, in words. Blocks."""
        try:
            listing = json_codec.decode(self._programs.nft_list("chains"), _Listing)
        except (errors.Unavailable, json_codec.InvalidJson) as error:
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

    def _list(self) -> list[str]:
        families = port_rules.FAMILIES if self._has_bridge_family else port_rules.FAMILIES[:1]
        try:
            return [self._programs.nft_list("table", family, self._names.table) for family in families]
        except errors.Unavailable:
            return []  # they are gone, or cannot be looked at

    def _change(self, changes: list[_Change]) -> None:
        if not self._subnets.all:
            return  # the node waits for its subnet, and nobody is attached
        before = self._contents
        host_ports, policies = dict(before.host_ports), dict(before.policies)
        for change in changes:
            for host_port in change.gone:
                host_ports.pop(host_port, None)
            host_ports |= change.come
            policies |= change.policies
        restricted = {address: policy for address, policy in policies.items() if policy != OPEN_POLICY}
        after = NftTableContents(host_ports, restricted, self._resolvers())
        if any(change.is_outdated for change in changes):
            self._replace(after)
        elif any(change.is_doubtful for change in changes) and self._list() != self._written:
            log.warning("network.rules_lost", table=self._names.table)
            self._replace(after)
        elif text := port_rules.write_changes(
            self._names, before, after, has_bridge_family=self._has_bridge_family
        ):
            try:
                self._programs.nft(text)
            except errors.Unavailable as error:  # all or nothing of it: the tables are not what we think
                log.warning("network.rules_lost", table=self._names.table, error=error.message)
                self._replace(after)
        self._contents = after
        moved = before.host_ports.items() ^ after.host_ports.items()
        if ports := {port for (port, protocol), _ in moved if protocol is Protocol.UDP}:
            for network in self._subnets.networks:
                conntrack.forget_udp(ports, network)
