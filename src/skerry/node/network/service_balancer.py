"""Balances connections to virtual addresses over the ready copies of services, by nftables.

Follows the network objects of this node (services, locations of nodes, the range of addresses), and changes
the kernel's rules by as much as changed, in one transaction. The rules stay while the agent is away, and are
written anew when it is back; if they were altered, for example because somebody flushed the ruleset, they are
written again. `skerry.node.network.service_shares` decides, `skerry.node.network.service_rules` has the text.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import Final, NamedTuple

import structlog
from msgspec.structs import replace

from skerry.kit import json_codec
from skerry.kit.batching import Batcher
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.network_objects import (
    EndpointState,
    NodeLocation,
    ServiceAddress,
    ServiceSubnet,
)
from skerry.model.ports import Protocol
from skerry.node.network import conntrack, host_routes, service_rules, service_shares
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.nft_tables import NftTables
from skerry.node.network.rule_families import IPV6, RuleFamily, address_families, table_families
from skerry.node.network.service_rules import (
    BalancedService,
    ServiceObjects,
    ServiceTableBase,
    ServiceTableContents,
)
from skerry.node.network.service_shares import NodeSurroundings, RoundTrip, unknown_round_trip
from skerry.node.network.subnets import BRIDGE_PREFIX, BridgeSubnets, KernelNames

log = structlog.get_logger(__name__)

_CHECK_S: Final = 30.0
_RETRY_S: Final = 2.0
_Listing = dict[str, list[dict[str, dict[str, object]]]]


class _OpenCopy(NamedTuple):
    """A copy that may have flows of a service."""

    virtual: IPv4Address
    address: IPv4Address
    protocol: Protocol


class _CompiledService(NamedTuple):
    """What follows from a service on this node: rules, its copies here, and copies that may have flows."""

    service: ServiceAddress
    objects: ServiceObjects
    objects6: ServiceObjects = service_rules.NO_OBJECTS
    local: frozenset[str] = frozenset()
    open_copies: frozenset[_OpenCopy] = frozenset()


class ServiceBalancer:
    """The rules of virtual addresses on one node."""

    def __init__(self, programs: NetworkCommands, names: KernelNames, subnets: BridgeSubnets) -> None:
        self._programs = programs
        self._names = names
        self._subnets = subnets
        self._node = NodeId("")
        self._round_trip: RoundTrip = unknown_round_trip
        self._services: Mapping[str, ServiceAddress] = {}
        self._locations: Mapping[str, NodeLocation] = {}
        self._unreachable: frozenset[NodeId] = frozenset()
        self._ranges: tuple[str, ...] = ()
        self._compiled: dict[str, _CompiledService] = {}
        self._surroundings = NodeSurroundings(self._node)  # of what is compiled
        self._compiled_ranges: tuple[str, ...] = ()  # likewise
        self._networks: tuple[IPv4Network, ...] = ()  # of these
        self._has_bridge_family = True
        self._base: ServiceTableBase | None = None  # as written; None: nothing was
        self._contents = ServiceTableContents()
        self._open_copies: dict[str, frozenset[_OpenCopy]] = {}  # of services, in the rules
        self._routes: dict[str, str] = {}  # ranges with the source of connections
        self._wake = asyncio.Event()
        self._batches = Batcher(self._change)
        self._closed: set[_OpenCopy] = set()  # copies whose flows are to be removed
        self._are_flows_unknown = False  # those of the time before the first rules are to be looked at
        self._removals = Batcher(self._remove_flows)

    def follow(self, node: NodeId) -> None:
        """This node is `node`."""
        self._node = node
        self._wake.set()

    def use_round_trips(self, round_trip: RoundTrip) -> None:
        """Prefer near nodes by these measures, which are read at every change and now and then."""
        self._round_trip = round_trip

    def services_changed(self, services: Mapping[str, ServiceAddress]) -> None:
        """These are all services now."""
        self._services = services
        self._wake.set()

    def locations_changed(self, locations: Mapping[str, NodeLocation]) -> None:
        self._locations = locations
        self._wake.set()

    def unreachable_changed(self, nodes: frozenset[NodeId]) -> None:
        """No packet gets to these nodes now, whatever the server knows of them, or while it is away."""
        self._unreachable = nodes
        self._wake.set()

    def ranges_changed(self, ranges: Mapping[str, ServiceSubnet]) -> None:
        """These are the ranges of virtual addresses now."""
        self._ranges = tuple(sorted(each for each in ranges if _network(each) is not None))
        self._wake.set()

    async def run(self) -> None:
        """Keep the rules in line with what is known, for ever. They do not wait for the removal of flows."""
        loop = asyncio.get_running_loop()
        check_at = loop.time() + _CHECK_S
        async with asyncio.TaskGroup() as removals:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(check_at):
                        await self._wake.wait()
                self._wake.clear()
                if is_doubtful := loop.time() >= check_at:
                    check_at = loop.time() + _CHECK_S
                try:
                    await self.write_rules(is_doubtful=is_doubtful)
                except errors.Unavailable as error:
                    log.warning("services.rules_not_written", error=error.message)
                    await asyncio.sleep(_RETRY_S)
                    self._wake.set()
                if self._closed or self._are_flows_unknown:
                    removals.create_task(self._removals.do(None))

    async def apply(self, *, is_doubtful: bool = False) -> None:
        """Have the rules as they should be, and no flow that they would not make; effective on return.
        `is_doubtful`: somebody may have altered the rules. Raises Unavailable."""
        await self.write_rules(is_doubtful=is_doubtful)
        await self._removals.do(None)

    async def write_rules(self, *, is_doubtful: bool = False) -> None:
        """As `apply`, for new connections alone."""
        await self._batches.do(is_doubtful)

    def subnets_changed(self) -> None:
        """The node has other subnets of containers now: its route to virtual addresses follows."""
        self._wake.set()

    async def drain(self) -> None:
        await self._batches.drain()
        await self._removals.drain()

    def remove(self) -> None:
        """Remove the rules. Blocks."""
        # Routes went with the bridge.
        NftTables(self._programs, self._names.services_table, ()).delete()
        self._base = None
        self._contents = ServiceTableContents()

    def _change(self, doubts: list[bool]) -> None:
        if not self._subnets.all or not self._ranges:
            return  # nothing is attached, or no server was reached yet: what is there stays
        routes = self._programs.namespace.run(host_routes.read)
        serves_node = not self._other_routes(routes)
        base = ServiceTableBase(
            self._ranges,
            self._subnets.bridge_mac,
            serves_node,
            self._has_bridge_family,
            self._subnets.has_ipv6,
        )
        after = self._compile()
        is_first = self._base is None
        if base != self._base or (any(doubts) and self._is_altered(base)):
            self._write(base, after)
        elif text := service_rules.write_changes(self._names, self._contents, after, base.families):
            self._write_changes(text, base, after)
        self._contents = after
        self._route(routes, self._ranges if serves_node else ())
        self._note_closed(is_first=is_first)

    def _compile(self) -> ServiceTableContents:
        """What the tables should contain."""
        services, ranges = self._services, self._ranges
        here = NodeSurroundings.of(self._node, self._locations.values(), self._round_trip, self._unreachable)
        if (here, ranges) != (self._surroundings, self._compiled_ranges):
            self._surroundings, self._compiled_ranges = here, ranges
            self._networks = tuple(map(IPv4Network, ranges))
            self._compiled.clear()
        compiled: dict[str, _CompiledService] = {}
        for key, service in services.items():
            known = self._compiled.get(key)
            compiled[key] = known if known and known.service is service else self._compile_one(service)
        self._compiled = compiled
        # No server gives an address twice; if one did, the others would still have theirs.
        owners = {each.service.address: key for key, each in reversed(compiled.items())}
        owned = {key: each for key, each in compiled.items() if owners[each.service.address] == key}
        return ServiceTableContents(
            {key: each.objects for key, each in owned.items() if each.objects.chains},
            frozenset().union(*(each.local for each in compiled.values() if each.local)),
            {key: each.objects6 for key, each in owned.items() if each.objects6.chains},
        )

    def _compile_one(self, service: ServiceAddress) -> _CompiledService:
        virtual = _address(service.address)
        if virtual is None or not any(virtual in each for each in self._networks):
            return _CompiledService(service, service_rules.NO_OBJECTS)
        copies = {each: copy for each in service.endpoints if (copy := _address(each.address)) is not None}
        weights = service_shares.weights(list(copies), self._surroundings)
        balanced = BalancedService(str(virtual), weights, service.ports, service.affinity_s)
        with_clients = [each for each in copies if each.state is not EndpointState.NOT_READY]
        with_flows = [
            each
            for each in with_clients
            if each.address in weights or each.node not in self._surroundings.unreachable
        ]
        with_ipv6 = {each.address for each in copies if each.address6}
        balanced6 = balanced._replace(
            weights={copy: weight for copy, weight in weights.items() if copy in with_ipv6}
        )
        has_ipv6 = self._subnets.has_ipv6
        return _CompiledService(
            service,
            service_rules.compile_service(balanced),
            service_rules.compile_service(balanced6, IPV6) if has_ipv6 else service_rules.NO_OBJECTS,
            frozenset(each.address for each in with_clients if each.node == self._node),
            frozenset(
                _OpenCopy(virtual, copies[each], protocol)
                for protocol in _protocols(service)
                for each in with_flows
            ),
        )

    def _write(self, base: ServiceTableBase, contents: ServiceTableContents) -> None:
        """Both tables, whatever they were before."""
        try:
            self._programs.nft(service_rules.write_tables(self._names, base, contents))
        except errors.Unavailable as error:
            if not base.has_bridge_family:
                raise
            log.warning("services.no_bridge_rules", error=error.message)
            self._has_bridge_family = False
            base = replace(base, has_bridge_family=False)
            self._programs.nft(service_rules.write_tables(self._names, base, contents))
        self._base = base
        log.info("services.rules_written", services=len(contents.services))

    def _write_changes(self, text: str, base: ServiceTableBase, after: ServiceTableContents) -> None:
        try:
            self._programs.nft(text)
        except errors.Unavailable as error:
            log.warning("network.rules_lost", table=self._names.services_table, error=error.message)
            self._write(base, after)

    def _is_altered(self, base: ServiceTableBase) -> bool:
        """True if the tables lack chains or rules, or have others; logged."""
        table = self._names.services_table
        try:
            is_altered = any(
                _rules_of(self._programs.nft_list("table", family.name, table))
                != self._expected_rules(base, family)
                for family in address_families(base.families)
            )
            if base.has_bridge_family:
                self._programs.nft_list("table", "bridge", table)
        except (errors.Unavailable, json_codec.InvalidJson):
            is_altered = True  # it is gone, or cannot be read
        if is_altered:
            log.warning("network.rules_lost", table=table)
        return is_altered

    def _expected_rules(self, base: ServiceTableBase, family: RuleFamily) -> Counter[str]:
        """The number of rules in each chain."""
        expected = Counter(
            {
                name: len(lines)
                for each in self._contents.of(family).values()
                for name, lines in each.chains.items()
            }
        )
        for name, lines in service_rules.base_chains(self._names, base, family).items():
            expected[name] = sum(not line.startswith("type ") for line in lines)
        return expected

    def _other_routes(self, routes: Sequence[host_routes.HostRoute]) -> list[str]:
        """Routes of this machine to virtual addresses that no Skerry made: its processes keep them."""
        ranges = [IPv4Network(each) for each in self._ranges]
        found = [
            f"{route.network} by {route.interface}"
            for route in routes
            if route.network.prefixlen >= 8
            and not route.interface.startswith(BRIDGE_PREFIX)
            and any(route.network.overlaps(each) for each in ranges)
        ]
        if found and (self._base is None or self._base.serves_node):
            log.warning(
                "services.not_for_node",
                reason="this machine reaches these otherwise, so its own processes do not reach services; "
                "set fleet.service_subnet to another network",
                routes=found,
            )
        return found

    def _route(self, routes: Sequence[host_routes.HostRoute], ranges: tuple[str, ...]) -> None:
        """Have routes to `ranges`, so that programs of the node can dial virtual addresses."""
        present = {str(route.network) for route in routes if route.interface == self._names.bridge}
        needed = dict.fromkeys(ranges, str(self._subnets.all[0].gateway))
        bridge, metric = self._names.bridge, self._names.service_route_metric
        families = address_families(table_families(has_ipv6=self._subnets.has_ipv6))
        stale = [each for each in self._routes if each not in needed and each in present]
        if stale:
            self._programs.ip(
                [
                    f"route del {family.network(IPv4Network(each))} dev {bridge} metric {metric}"
                    for each in stale
                    for family in families
                ],
                ignore_errors=True,
            )
        commands = [
            f"route replace {family.network(IPv4Network(each))} dev {bridge} "
            f"src {family.address(IPv4Address(source))} metric {metric}"
            for each, source in needed.items()
            if each not in present or self._routes.get(each) != source
            for family in families
        ]
        if commands:
            self._programs.ip(commands)
        self._routes = needed

    def _note_closed(self, *, is_first: bool) -> None:
        """Copies that are gone, or not ready, lose their flows soon. `is_first`: which there were is not
        known."""
        before = self._open_copies
        self._open_copies = {key: each.open_copies for key, each in self._compiled.items()}
        if is_first:
            self._are_flows_unknown = True
        for key, copies in before.items():
            if copies is not (now := self._open_copies.get(key, frozenset())):
                self._closed.update(copies - now)

    def _remove_flows(self, _: list[None]) -> None:
        """Remove flows to closed copies: of UDP, as every datagram keeps them alive, and of TCP that nobody
        has answered: the next try goes to another copy. The kernel looks at all of its flows for this, which
        may take longer than the change of rules, and rules may change meanwhile."""
        if self._are_flows_unknown:
            self._are_flows_unknown = False
            ranges = [IPv4Network(each) for each in self._ranges]
            present = _pairs(Protocol.UDP, *self._open_copies.values())
            self._forget(partial(conntrack.forget_udp_elsewhere, ranges, present))
        closed = {self._closed.pop() for _ in range(len(self._closed))}
        closed.difference_update(*self._open_copies.values())
        if datagrams := _pairs(Protocol.UDP, closed):
            self._forget(partial(conntrack.forget_udp_of_services, datagrams))
        if connections := _pairs(Protocol.TCP, closed):
            self._forget(partial(conntrack.forget_unanswered_of_services, connections))

    def _forget(self, forget: Callable[..., None]) -> None:
        self._programs.namespace.run(lambda: forget(has_ipv6=self._subnets.has_ipv6))


def _pairs(protocol: Protocol, *copies: Set[_OpenCopy]) -> set[tuple[IPv4Address, IPv4Address]]:
    """Virtual addresses with copies."""
    return {(each.virtual, each.address) for some in copies for each in some if each.protocol is protocol}


def _protocols(service: ServiceAddress) -> Set[Protocol]:
    return {port.protocol for port in service.ports} or set(Protocol)


def _rules_of(listing: str) -> Counter[str]:
    """The number of rules in each chain."""
    found: Counter[str] = Counter()
    for entry in json_codec.decode(listing.encode(), _Listing).get("nftables", []):
        if "chain" in entry:
            found[str(entry["chain"]["name"])] += 0
        elif "rule" in entry:
            found[str(entry["rule"]["chain"])] += 1
    return found


def _address(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)
    except ValueError:
        return None


def _network(text: str) -> IPv4Network | None:
    try:
        return IPv4Network(text)
    except ValueError:
        return None
