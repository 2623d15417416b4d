"""Published ports, masquerading and network policies, as nftables rules.

Keeps published ports and policies in memory, and updates the kernel's tables: each change is one transaction,
and concurrent changes share one. If the tables were altered, for example because somebody flushed the
ruleset, they are written again from memory. `skerry.node.network.port_rules` has the text of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

import structlog

from skerry.kit import json_codec
from skerry.kit.batching import Batcher
from skerry.model import errors
from skerry.model.network import OPEN_POLICY, NetworkPolicy
from skerry.model.ports import PortMapping, Protocol
from skerry.node.network import conntrack, policy_rules, port_rules
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.nft_tables import NftTables, check_forever, list_objects
from skerry.node.network.policy_rules import CloudNetwork
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
    "functions, containers of isolated namespaces, and those with the egress none cannot have a network: "
    "this kernel has no nftables for bridges (CONFIG_NF_TABLES_BRIDGE), without which other containers could "
    "call them; use a kernel with it, or deploy functions with --network none"
)


@dataclass(frozen=True, slots=True)
class _Change:
    """Ports to add and remove; `is_doubtful` if the kernel's tables may differ from memory, `is_outdated` if
    they must be rewritten."""

    added: dict[HostPort, ContainerPort] = field(default_factory=dict)
    removed: frozenset[HostPort] = frozenset()
    policies: dict[IPv4Address, NetworkPolicy] = field(default_factory=dict)
    cloud: CloudNetwork | None = None
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
        """`resolvers` returns the name servers of containers, read at every change."""
        self._names = names
        self._subnets = subnets
        self._ranges = ranges
        self._resolvers = resolvers
        self._contents = NftTableContents()
        # Policy by address; None while it changes, or if it is unknown.
        self._policies: dict[IPv4Address, NetworkPolicy | None] = {}
        self._tables = NftTables(programs, names.table, port_rules.FAMILIES)
        self._batches = Batcher(self._change)

    def open(
        self,
        host_ports: PublishedPorts,
        policies: Mapping[IPv4Address, NetworkPolicy],
        cloud: CloudNetwork | None = None,
    ) -> None:
        """Write the tables with these, whatever they were before. Without `cloud`, it stays. Blocks."""
        known = self._contents.cloud if cloud is None else cloud
        contents = NftTableContents(host_ports, policies, self._resolvers(), known)
        try:
            self._replace(contents)
        except errors.Unavailable as error:
            self._tables.families = port_rules.FAMILIES[:1]
            self._replace(contents)
            log.warning("network.no_bridge_rules", error=error.message)
        self._policies = dict(policies)

    @property
    def _has_bridge_family(self) -> bool:
        return len(self._tables.families) > 1

    def _replace(self, contents: NftTableContents) -> None:
        self._tables.write(
            port_rules.write_tables(
                self._names,
                self._subnets,
                self._ranges,
                contents,
                has_bridge_family=self._has_bridge_family,
            )
        )
        self._contents = contents

    def remove(self) -> None:
        """Remove the tables. Blocks."""
        self._tables.remove(port_rules.write_removal(self._names, has_bridge_family=self._has_bridge_family))
        self._contents = NftTableContents()

    async def publish(self, address: IPv4Address, mappings: Iterable[PortMapping]) -> None:
        """Publish ports of the machine for `address`; effective on return."""
        if host_ports := port_rules.published_ports(address, mappings):
            await self._batches.do(_Change(added=host_ports))

    async def withdraw(self, mappings: Iterable[PortMapping]) -> None:
        """Unpublish them; effective on return."""
        if host_ports := frozenset((each.source, each.protocol) for each in mappings):
            await self._batches.do(_Change(removed=host_ports))

    async def restrict(self, address: IPv4Address, policy: NetworkPolicy) -> None:
        """Apply exactly `policy` to `address`; effective on return. Completes even if the caller is
        cancelled. Raises Unavailable."""
        if policy_rules.rerouted({address: policy}) and not self._has_bridge_family:
            raise errors.Unavailable(NO_BRIDGE_FAMILY)
        if self._policies.get(address, OPEN_POLICY) == policy:
            return
        self._policies[address] = None
        await self._batches.do(_Change(policies={address: policy}))
        self._policies[address] = policy
        if policy == OPEN_POLICY:
            del self._policies[address]

    def namespace_at(self, address: IPv4Address) -> str:
        """The namespace of the container with an address; empty if it has none."""
        policy = self._policies.get(address)
        return "" if policy is None else policy.namespace

    async def follow_cloud(self, cloud: CloudNetwork) -> None:
        """Apply policies with what is known of other nodes now; effective on return. Raises Unavailable."""
        await self._batches.do(_Change(cloud=cloud))

    def lacking(self) -> tuple[str, ...]:
        """What the kernel does not support, in sentences; ideally empty."""
        return () if self._has_bridge_family else (NO_BRIDGE_FAMILY,)

    async def run(self) -> None:
        """Check the tables now and then, for ever."""
        await check_forever(self.check)

    async def check(self) -> None:
        """Write the tables again if they were removed or altered, or if name servers changed."""
        await self._batches.do(_Change(is_doubtful=True))

    async def rewrite(self) -> None:
        """Write the tables again for other subnets. Raises Unavailable."""
        await self._batches.do(_Change(is_outdated=True))

    async def drain(self) -> None:
        await self._batches.drain()

    def hindrances(self) -> list[str]:
        """Foreign rules that drop packets of containers, in sentences. Blocks."""
        try:
            chains = list_objects(self._tables.programs, "chain")
        except (errors.Unavailable, json_codec.InvalidJson) as error:
            log.warning("network.other_rules_not_read", error=str(error))
            return []
        return [
            f"the chain {chain['name']} of the table {chain['family']} {chain['table']} drops forwarded "
            "packets unless a rule of it accepts them: containers cannot reach other machines, and "
            f"other machines cannot reach them, unless it accepts packets from and to {self._names.bridge}"
            for chain in chains
            if chain.get("hook") == "forward"
            and chain.get("policy") == "drop"
            and chain.get("family") in ("ip", "inet")
            and chain.get("table") != self._names.table
        ]

    def _change(self, changes: list[_Change]) -> None:
        if not self._subnets.all:  # the node waits for its subnet, and nothing is attached
            clouds = [change.cloud for change in changes if change.cloud is not None]
            self._contents = NftTableContents(cloud=clouds[-1] if clouds else self._contents.cloud)
            return
        before, cloud = self._contents, self._contents.cloud
        host_ports, policies = dict(before.host_ports), dict(before.policies)
        for change in changes:
            for host_port in change.removed:
                host_ports.pop(host_port, None)
            host_ports |= change.added
            policies |= change.policies
            cloud = cloud if change.cloud is None else change.cloud
        restricted = {address: policy for address, policy in policies.items() if policy != OPEN_POLICY}
        after = NftTableContents(host_ports, restricted, self._resolvers(), cloud)
        is_doubtful = any(change.is_doubtful for change in changes)
        is_outdated = any(change.is_outdated for change in changes)
        is_outdated |= not port_rules.has_same_chains(before, after)
        if is_outdated or (is_doubtful and self._tables.is_altered()):
            self._replace(after)
        elif text := port_rules.write_changes(
            self._names, before, after, has_bridge_family=self._has_bridge_family
        ):
            self._tables.change(text, lambda: self._replace(after))
        self._contents = after
        moved = before.host_ports.items() ^ after.host_ports.items()
        if ports := {port for (port, protocol), _ in moved if protocol is Protocol.UDP}:
            for network in self._subnets.networks:
                conntrack.forget_udp(ports, network)
