"""Rules of the firewall, as text for nft. Pure.

Tables with a name of our own, of the families `ip`, `ip6` and `bridge`; nothing else is read or changed.
Those of the families `ip` and `ip6` publish ports, masquerade containers, and apply their policies
(`skerry.node.network.policy_rules`). Containers that not everybody may connect to, and those that may connect
to nobody, need the third one as well: frames between ports of a bridge bypass the others, so it routes such a
container's traffic through the node, where they apply. It does that with all IPv6, so that no container tells
another where an address is. `write_tables` writes all, replacing existing ones in one transaction;
`write_changes` writes the difference. `skerry.node.network.firewall` runs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, ip_address
from typing import NamedTuple

import msgspec

from skerry.kit.networks import Network
from skerry.model.network import Ingress, NetworkPolicy
from skerry.model.ports import PortMapping, Protocol
from skerry.node.network import nft_elements, policy_rules
from skerry.node.network.nft_elements import ElementChange, SetElement
from skerry.node.network.policy_rules import NO_CLOUD, CloudNetwork
from skerry.node.network.rule_families import BRIDGE, IPV4, IPV6, RuleFamily, address_families
from skerry.node.network.subnets import BridgeSubnets, KernelNames

HostPort = tuple[int, Protocol]  # a port of the machine
ContainerPort = tuple[IPv4Address, int]  # the port that it is forwarded to
PublishedPorts = Mapping[HostPort, ContainerPort]

# By which a machine finds its neighbours and routers. Containers have no say in it: neighbours are fixed.
_NEIGHBOUR_DISCOVERY = (
    "nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect"
)
_Set = tuple[str, str]  # its family and its name
_LINKS = "links"  # of containers whose packets are routed through the node
_TO, _AND = " : ", " . "  # in an element of a map: between its key and its data, and between parts of these


class AddressRanges(msgspec.Struct, frozen=True):
    """Networks of the settings: open to all, and closed with `Egress.INTERNET`."""

    allowed: tuple[Network, ...] = ()
    closed: tuple[IPv4Network, ...] = ()


class NftTableContents(msgspec.Struct, frozen=True):
    """The contents of the tables, which change while containers come and go."""

    host_ports: PublishedPorts = msgspec.field(default_factory=dict)
    policies: Mapping[IPv4Address, NetworkPolicy] = msgspec.field(default_factory=dict)
    resolvers: tuple[str, ...] = ()  # name servers, open on port 53 wherever they are
    cloud: CloudNetwork = NO_CLOUD


def published_ports(address: IPv4Address, mappings: Iterable[PortMapping]) -> dict[HostPort, ContainerPort]:
    return {(each.source, each.protocol): (address, each.destination) for each in mappings}


def write_tables(
    names: KernelNames,
    subnets: BridgeSubnets,
    ranges: AddressRanges,
    contents: NftTableContents,
    families: Sequence[str],
) -> str:
    """The tables of `families` with `contents`, replacing existing ones."""
    sets = _elements(names, contents, families)
    text = write_removal(names, families)
    for family in address_families(families):
        text += _write_addresses(names, subnets, ranges, contents, sets, family)
    return text + (_write_bridge(names, sets, subnets) if BRIDGE in families else "")


def _write_addresses(
    names: KernelNames,
    subnets: BridgeSubnets,
    ranges: AddressRanges,
    contents: NftTableContents,
    sets: Mapping[_Set, Mapping[str, str]],
    family: RuleFamily,
) -> str:
    ip, kind, loopback = family.name, family.type, family.loopback
    networks = ", ".join(map(family.network, subnets.networks))
    own_networks = policy_rules.own_networks_text(subnets, family)
    bridge, mesh = f'"{names.bridge}"', f'"{names.mesh}"'
    # The kernel forwards nothing from or to ::1: it is refused, and programs go on with 127.0.0.1.
    not_loopback = f"{ip} daddr != {loopback} " if family is IPV6 else ""
    publish = "".join(
        f"{not_loopback}fib daddr type local dnat {ip} to {protocol} dport map @{_map_name(protocol)}\n    "
        for protocol in Protocol
    ).rstrip()
    maps = "".join(
        f"  map {_map_name(protocol)} {{ type inet_service : {kind} . inet_service; "
        f"{_fill(sets[ip, _map_name(protocol)].values())} }}\n"
        for protocol in Protocol
    )
    private = [*family.private, *map(family.network, ranges.closed)]
    dns = f"{ip} daddr @resolvers meta l4proto {{ tcp, udp }} th dport 53"
    # Packets of the mesh interface come from subnets of peers, by rules of its own
    # (`skerry.node.network.mesh.rules`); between nodes they keep their addresses.
    # Requests of a container are filtered before DNAT, and replies are not: those of a published port go to
    # wherever
    # the client is.
    return f"""\
table {ip} {names.table} {{
{maps}\
  set node_only {{ type {kind}; {_fill(sets[ip, "node_only"])} }}
  set resolvers {{ type {kind}; {_fill(sets[ip, "resolvers"])} }}
  set allowed {{ type {kind}; flags interval; auto-merge; {_fill(family.own(ranges.allowed))} }}
  set metadata {{ type {kind}; flags interval; auto-merge; {_fill(family.metadata)} }}
  set private {{ type {kind}; flags interval; auto-merge; {_fill(private)} }}
{policy_rules.write_from_outside(own_networks, family)}\
{policy_rules.write_sets(contents.policies, contents.cloud, family)}\
{policy_rules.write_mesh_egress(own_networks, family)}\
  chain guard {{
    type filter hook prerouting priority raw; policy accept;
    iifname {bridge} {ip} saddr != {own_networks} drop
    iifname {bridge} {ip} daddr {loopback} drop
{_write_ipv6_guard(bridge) if family is IPV6 else ""}\
  }}
  chain egress {{
    type filter hook prerouting priority mangle; policy accept;
    iifname != {bridge} accept
    ct direction reply accept
{policy_rules.write_egress(dns, family)}\
    {ip} daddr @allowed accept
    {ip} daddr @metadata drop
{policy_rules.write_internet_egress(family)}\
    {ip} saddr @internet_only {ip} daddr != {own_networks} {ip} daddr @private fib daddr type != local drop
  }}
{_write_no_route(bridge) if family is IPV6 else ""}\
  chain node {{
    type filter hook input priority filter; policy accept;
    iifname != {bridge} accept
    ct direction reply accept
    {dns} accept
    {ip} saddr @mesh_only drop
    {ip} daddr @allowed accept
    {ip} saddr @internet_only drop
  }}
  chain arriving {{
    type nat hook prerouting priority dstnat; policy accept;
    {publish}
  }}
  chain dialling {{
    type nat hook output priority -100; policy accept;
    {publish}
  }}
  chain calling {{
    type filter hook output priority filter; policy accept;
    oifname {bridge} {ip} daddr @node_only ct direction original meta skuid != 0 drop
  }}
  chain leaving {{
    type nat hook postrouting priority srcnat; policy accept;
    {ip} saddr {own_networks} oifname != {{ {bridge}, {mesh} }} masquerade
    {ip} saddr {{ {networks}, {loopback} }} oifname {bridge} ct status dnat masquerade
  }}
  chain entering {{
    type filter hook forward priority filter; policy accept;
    oifname != {bridge} accept
    {ip} daddr @node_only ct direction original drop
{policy_rules.write_ingress(bridge, family)}\
    iifname {{ {bridge}, {mesh} }} accept
    ct state established,related accept
    ct status dnat accept
    drop
  }}
}}
"""


def _write_ipv6_guard(bridge: str) -> str:
    return f"    iifname {bridge} icmpv6 type {{ {_NEIGHBOUR_DISCOVERY} }} drop\n"


def _write_no_route(bridge: str) -> str:
    """A chain that refuses what the machine has no route to. The kernel says so by ICMP, which a client on
    the same machine misses if it comes before `connect` waits; it would then wait for a second or more before
    it tries IPv4."""
    return f"""\
  chain no_route {{
    type filter hook prerouting priority -90; policy accept;
    iifname {bridge} meta l4proto tcp fib daddr type unreachable reject with tcp reset
  }}
"""


def _write_bridge(names: KernelNames, sets: Mapping[_Set, Mapping[str, str]], subnets: BridgeSubnets) -> str:
    # No packet of or for such a container passes between two ports before the others have filtered it. On
    # machines
    # that filter bridged packets, those from and to published ports do so afterwards.
    has_ipv6 = (BRIDGE, "rerouted6") in sets
    arriving = (
        "ether type ip6 meta pkttype { broadcast, multicast } drop\n    ether type ip6 goto reroute"
        if has_ipv6
        else "ether type ip6 drop"
    )
    rerouted6 = (
        f"  set rerouted6 {{ type ipv6_addr; {_fill(sets[BRIDGE, 'rerouted6'])} }}\n" if has_ipv6 else ""
    )
    passing6 = "    oifname @links ip6 daddr @rerouted6 accept\n" if has_ipv6 else ""
    return f"""\
table bridge {names.table} {{
  set {_LINKS} {{ type ifname; {_fill(sets[BRIDGE, _LINKS])} }}
  set rerouted {{ type ipv4_addr; {_fill(sets[BRIDGE, "rerouted"])} }}
{rerouted6}\
  chain reroute {{
    ether daddr set {subnets.bridge_mac} meta pkttype set host
  }}
  chain arriving {{
    type filter hook prerouting priority dstnat; policy accept;
    iifname != "{names.link_prefix}*" accept
    {arriving}
    ether type ip iifname @links goto reroute
    ether type ip ip daddr @rerouted goto reroute
  }}
  chain passing {{
    type filter hook forward priority filter; policy accept;
    ether type arp accept
    oifname @links ip daddr @rerouted accept
{passing6}\
    oifname @links drop
    iifname @links ether type != {"{ ip, ip6 }" if has_ipv6 else "ip"} drop
  }}
}}
"""


def write_changes(
    names: KernelNames, before: NftTableContents, after: NftTableContents, families: Sequence[str]
) -> str:
    """Commands that change tables with `before` to `after`; empty if they are equal. Only for contents with
    the same chains (`has_same_chains`)."""
    return "".join(
        f"{verb} element {change.family} {names.table} {change.name} {{ {', '.join(some)} }}\n"
        for change in _set_changes(names, before, after, families)
        for verb, some in (("delete", change.removed), ("add", change.added))
        if some
    )


def element_changes(
    names: KernelNames, before: NftTableContents, after: NftTableContents, families: Sequence[str]
) -> list[ElementChange] | None:
    """The same as data for `skerry.node.network.nft_elements`; None if a set or map differs that only nft can
    change."""
    changes = list(_set_changes(names, before, after, families))
    if any(change.name in policy_rules.CHANGED_BY_NFT for change in changes):
        return None
    return [
        ElementChange(
            family,
            name,
            tuple(_encode_element(name, key).key for key in removed),
            tuple(_encode_element(name, element) for element in added),
        )
        for family, name, removed, added in changes
    ]


class _SetChange(NamedTuple):
    """What differs in a set or map, in the words of nft."""

    family: str
    name: str
    removed: list[str]  # keys
    added: list[str]  # elements


def _set_changes(
    names: KernelNames, before: NftTableContents, after: NftTableContents, families: Sequence[str]
) -> Iterator[_SetChange]:
    had = _elements(names, before, families)
    for (family, name), elements in _elements(names, after, families).items():
        old = had[family, name]
        removed = [key for key, element in old.items() if elements.get(key) != element]
        added = [element for key, element in elements.items() if old.get(key) != element]
        if removed or added:
            yield _SetChange(family, name, removed, added)


def _encode_element(name: str, element: str) -> SetElement:
    """An element, or its key, of the set or map called `name`."""
    key, _, data = element.partition(_TO)
    if name in _PORT_MAPS:
        address, _, port = data.partition(_AND)
        target = nft_elements.port_target(ip_address(address), int(port)) if data else b""
        return SetElement(nft_elements.port_key(int(key)), target)
    if name == _LINKS:
        return SetElement(nft_elements.link_key(key.strip('"')))
    return SetElement(ip_address(key).packed)


def has_same_chains(before: NftTableContents, after: NftTableContents) -> bool:
    """True if elements are all that differs."""
    namespaces = policy_rules.isolated_namespaces
    return namespaces(before.policies) == namespaces(after.policies)


def write_removal(names: KernelNames, families: Iterable[str]) -> str:
    # Adding a table first makes deleting it no error where there is none.
    return "".join(
        f"add table {family} {names.table}\ndelete table {family} {names.table}\n" for family in families
    )


def _elements(
    names: KernelNames, contents: NftTableContents, families: Sequence[str]
) -> dict[_Set, dict[str, str]]:
    """The elements of each set, by key."""
    rerouted = policy_rules.rerouted(contents.policies)
    found: dict[_Set, dict[str, str]] = {}
    for family in address_families(families):
        found |= {(family.name, name): each for name, each in _address_elements(contents, family).items()}
    if BRIDGE in families:
        found[BRIDGE, _LINKS] = _keys(f'"{names.link(address)}"' for address in rerouted)
        found[BRIDGE, "rerouted"] = _keys(map(IPV4.address, rerouted))
        if IPV6.name in families:
            found[BRIDGE, "rerouted6"] = _keys(map(IPV6.address, rerouted))
    return found


def _address_elements(contents: NftTableContents, family: RuleFamily) -> dict[str, dict[str, str]]:
    """Those of the table of one family, by set and key."""
    policies = sorted(contents.policies.items())
    node_only = [address for address, policy in policies if policy.ingress is Ingress.NODE]
    host_ports = sorted(contents.host_ports.items())
    return {
        **{
            _map_name(kind): {
                str(port): f"{port}{_TO}{family.address(target[0])}{_AND}{target[1]}"
                for (port, each), target in host_ports
                if each is kind
            }
            for kind in Protocol
        },
        "node_only": _keys(map(family.address, node_only)),
        **policy_rules.elements(contents.policies, contents.cloud, family),
        # Name servers are asked by IPv4.
        "resolvers": _keys(contents.resolvers if family is IPV4 else ()),
    }


def _keys(elements: Iterable[str]) -> dict[str, str]:
    return {element: element for element in elements}


def _map_name(protocol: Protocol) -> str:
    return f"{protocol}_ports"


_PORT_MAPS = frozenset(map(_map_name, Protocol))


def _fill(elements: Iterable[str]) -> str:
    filled = ", ".join(elements)
    return f"elements = {{ {filled} }}" if filled else ""
