"""Published ports, masquerading and network policies, as nftables rules.

Keeps published ports and policies in memory, and updates the kernel's tables: each change is one transaction,
and concurrent changes share one. If the tables were altered, for example because somebody flushed the
ruleset, they are written again from memory. `skerry.node.network.port_rules` has the text of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from ipaddress import IPv4Address

import msgspec
import structlog

from skerry.kit import json_codec
from skerry.kit.batching import Batcher
from skerry.model import errors
from skerry.model.network import OPEN_POLICY, Ingress, NetworkPolicy
from skerry.model.ports import PortMapping, Protocol
from skerry.node.network import conntrack, nft_elements, policy_rules, port_rules
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.nft_tables import NftTables, check_forever, list_chains
from skerry.node.network.policy_rules import CloudNetwork
from skerry.node.network.port_rules import (
    AddressRanges,
    ContainerPort,
    HostPort,
    NftTableContents,
    PublishedPorts,
)
from skerry.node.network.rule_families import BRIDGE, IPV6, table_families
from skerry.node.network.subnets import BridgeSubnets, KernelNames, NodeSubnet

log = structlog.get_logger(__name__)

NO_BRIDGE_FAMILY = (
    "functions, containers of isolated namespaces, and those with the egress none cannot have a network: "
    "this kernel has no nftables for bridges (CONFIG_NF_TABLES_BRIDGE), without which other containers could "
    "call them; use a kernel with it, or deploy functions with --network none"
)


class _Change(msgspec.Struct, frozen=True):
    """Ports to add and remove; `is_doubtful` if the kernel's tables may differ from memory, `is_outdated` if
    they must be rewritten."""

    added: dict[HostPort, ContainerPort] = msgspec.field(default_factory=dict)
    removed: frozenset[HostPort] = frozenset()
    policies: dict[IPv4Address, NetworkPolicy] = msgspec.field(default_factory=dict)
    cloud: CloudNetwork | None = None
    is_doubtful: bool = False
    is_outdated: bool = False


NO_IPV6_RULES = (
    "containers have no IPv6: this kernel lacks nftables for IPv6 or for bridges (CONFIG_NF_TABLES_IPV6, "
    "CONFIG_NF_TABLES_BRIDGE, CONFIG_NFT_FIB_IPV6); use a kernel with them, or set network.ipv6 to off"
)


class Firewall:
    """The tables of rules."""

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
        self._tables = NftTables(programs, names.table, table_families(has_ipv6=False))
        # Policies that differ from those in the kernel's tables by a namespace that no rule mentions.
        self._renamed: dict[IPv4Address, NetworkPolicy] = {}
        self._lacks_ipv6 = False
        self._batches = Batcher(self._change)

    def open(
        self,
        host_ports: PublishedPorts,
        policies: Mapping[IPv4Address, NetworkPolicy],
        cloud: CloudNetwork | None = None,
    ) -> None:
        """Write the tables with these, whatever they were before. Without `cloud`, it stays. Where the kernel
        cannot have those of IPv6, there is no IPv6 from then on. Blocks."""
        known = self._contents.cloud if cloud is None else cloud
        contents = NftTableContents(host_ports, policies, self._resolvers(), known)
        if self._subnets.has_ipv6 and not self._open_as(table_families(has_ipv6=True), contents):
            self._subnets.has_ipv6, self._lacks_ipv6 = False, True
        if not self._subnets.has_ipv6:
            if not self._open_as(table_families(has_ipv6=False), contents):
                self._tables.families = table_families(has_ipv6=False, has_bridge=False)
                self._replace(contents)
            self._tables.delete(IPV6.name)  # of an earlier agent
        self._policies = dict(policies)
        self._renamed = {}

    def _open_as(self, families: tuple[str, ...], contents: NftTableContents) -> bool:
        """True if the kernel has tables of all these families."""
        self._tables.families = families
        try:
            self._replace(contents)
        except errors.Unavailable as error:
            log.warning("network.rules_not_supported", families=families, error=error.message)
            return False
        return True

    @property
    def _has_bridge_family(self) -> bool:
        return BRIDGE in self._tables.families

    def _replace(self, contents: NftTableContents) -> None:
        self._tables.write(
            port_rules.write_tables(self._names, self._subnets, self._ranges, contents, self._tables.families)
        )
        self._contents = contents

    def remove(self) -> None:
        """Remove the tables. Blocks."""
        self._tables.delete()
        self._contents = NftTableContents()

    async def publish(self, address: IPv4Address, mappings: Iterable[PortMapping]) -> None:
        """Publish ports of the machine for `address`; effective on return."""
        if host_ports := port_rules.published_ports(address, mappings):
            await self._batches.do(_Change(added=host_ports))

    async def withdraw(self, mappings: Iterable[PortMapping]) -> None:
        """Unpublish them; effective on return."""
        if host_ports := frozenset((each.source, each.protocol) for each in mappings):
            await self._batches.do(_Change(removed=host_ports))

    async def restrict(
        self,
        address: IPv4Address,
        policy: NetworkPolicy,
        *,
        ahead: Callable[[], Sequence[IPv4Address]] = tuple,
    ) -> None:
        """Apply exactly `policy` to `address`; effective on return. `ahead` returns addresses that will need
        it too, and get it in the same transaction unless they have one. Completes even if the caller is
        cancelled. Raises Unavailable."""
        if policy_rules.rerouted({address: policy}) and not self._has_bridge_family:
            raise errors.Unavailable(NO_BRIDGE_FAMILY)
        current = self._policies.get(address, OPEN_POLICY)
        if current == policy:
            return
        if current is not None and self._is_same_to_kernel(current, policy):
            self._renamed[address] = policy
            self._set_policies([address], policy)
            return
        addresses = [address, *(each for each in ahead() if each not in self._policies and each != address)]
        for each in addresses:
            self._policies[each] = None
        await self._batches.do(_Change(policies=dict.fromkeys(addresses, policy)))
        self._set_policies(addresses, policy)

    async def release(self, address: IPv4Address) -> None:
        """`address` has no owner any more, and no link. Rules by which only the node reaches it stay, since
        the next owner is likely to need them; any other gets its own before something runs there. Raises
        Unavailable."""
        policy = self._policies.get(address, OPEN_POLICY)
        stays = policy is not None and policy.ingress is Ingress.NODE
        await self.restrict(address, policy.shared if stays and policy is not None else OPEN_POLICY)

    async def keep_only(self, owned: Collection[IPv4Address], subnet: NodeSubnet) -> None:
        """Remove rules of addresses that are neither `owned` nor in `subnet`. Raises Unavailable."""
        stale = [each for each in self._policies if each not in owned and not subnet.has(each)]
        if stale:
            await self._batches.do(_Change(policies=dict.fromkeys(stale, OPEN_POLICY)))
            self._set_policies(stale, OPEN_POLICY)

    def _set_policies(self, addresses: Iterable[IPv4Address], policy: NetworkPolicy) -> None:
        for each in addresses:
            if policy == OPEN_POLICY:
                self._policies.pop(each, None)
            else:
                self._policies[each] = policy

    def _is_same_to_kernel(self, one: NetworkPolicy, other: NetworkPolicy) -> bool:
        """True if they differ by their namespace only, and no rule depends on that. A change in progress may
        be about to add one."""
        return (
            (one.ingress, one.egress) == (other.ingress, other.egress)
            and one.ingress is not Ingress.NAMESPACE
            and self._batches.is_idle
            and not policy_rules.isolated_namespaces(self._contents.policies)
        )

    def namespace_at(self, address: IPv4Address) -> str:
        """The namespace of the container with an address; empty if it has none."""
        policy = self._policies.get(address)
        return "" if policy is None else policy.namespace

    async def follow_cloud(self, cloud: CloudNetwork) -> None:
        """Apply policies with what is known of other nodes now; effective on return. Raises Unavailable."""
        await self._batches.do(_Change(cloud=cloud))

    def lacking(self) -> tuple[str, ...]:
        """What the kernel does not support, in sentences; ideally empty."""
        return (
            *(() if self._has_bridge_family else (NO_BRIDGE_FAMILY,)),
            *((NO_IPV6_RULES,) if self._lacks_ipv6 else ()),
        )

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
            chains = list_chains(self._tables.programs)
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
            and chain.get("family") in ("ip", "inet", *((IPV6.name,) if self._subnets.has_ipv6 else ()))
            and chain.get("table") != self._names.table
        ]

    def _change(self, changes: list[_Change]) -> None:
        if not self._subnets.all:  # the node waits for its subnet, and nothing is attached
            clouds = [change.cloud for change in changes if change.cloud is not None]
            self._contents = NftTableContents(cloud=clouds[-1] if clouds else self._contents.cloud)
            return
        before, cloud = self._contents, self._contents.cloud
        renamed, self._renamed = self._renamed, {}
        host_ports, policies = dict(before.host_ports), {**before.policies, **renamed}
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
        else:
            self._change_elements(*_changed_part(before, after, changes), lambda: self._replace(after))
        self._contents = after
        moved = before.host_ports.items() ^ after.host_ports.items()
        if ports := {port for (port, protocol), _ in moved if protocol is Protocol.UDP}:
            networks, has_ipv6 = self._subnets.networks, self._subnets.has_ipv6
            self._tables.programs.namespace.run(
                lambda: conntrack.forget_udp(ports, networks, has_ipv6=has_ipv6)
            )

    def _change_elements(
        self, before: NftTableContents, after: NftTableContents, rewrite: Callable[[], None]
    ) -> None:
        changes = port_rules.element_changes(self._names, before, after, self._tables.families)
        if changes is not None and nft_elements.count(changes) <= nft_elements.MOST:
            self._tables.change_elements(changes, rewrite)
        elif text := port_rules.write_changes(self._names, before, after, self._tables.families):
            self._tables.change(text, rewrite)


def _changed_part(
    before: NftTableContents, after: NftTableContents, changes: Sequence[_Change]
) -> tuple[NftTableContents, NftTableContents]:
    """Both with the policies of changed addresses alone, where elements depend on the policy of their address
    and on nothing else: the others need not be written out to be compared."""
    if before.cloud is not after.cloud or policy_rules.isolated_namespaces(after.policies):
        return before, after
    changed = {address for change in changes for address in change.policies}
    one, other = (
        msgspec.structs.replace(
            each, policies={address: each.policies[address] for address in changed & each.policies.keys()}
        )
        for each in (before, after)
    )
    return one, other
