"""Rules of the firewall, as text for nft. Pure.

Two tables with a name of our own, of the families `ip` and `bridge`; nothing else is read or changed. The one
of the family `ip` publishes ports, masquerades containers, and applies their policies
(`skerry.node.network.policy_rules`). Containers that not everybody may connect to, and those that may connect
to nobody, need the other one as well: frames between ports of a bridge bypass the first, so it routes such a
container's traffic through the node, where the first one applies. `write_tables` writes both, replacing
existing ones in one transaction; `write_changes` writes the difference. `skerry.node.network.firewall` runs
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network

import msgspec

from skerry.model.network import Ingress, NetworkPolicy
from skerry.model.ports import PortMapping, Protocol
from skerry.node.network import policy_rules
from skerry.node.network.address_ranges import METADATA, PRIVATE
from skerry.node.network.policy_rules import NO_CLOUD, CloudNetwork
from skerry.node.network.subnets import BridgeSubnets, KernelNames

HostPort = tuple[int, Protocol]  # a port of the machine
ContainerPort = tuple[IPv4Address, int]  # the port that it is forwarded to
PublishedPorts = Mapping[HostPort, ContainerPort]

FAMILIES = ("ip", "bridge")
_Set = tuple[str, str]  # its family and its name


class AddressRanges(msgspec.Struct, frozen=True):
    """Networks of the settings: open to all, and closed with `Egress.INTERNET`."""

    allowed: tuple[IPv4Network, ...] = ()
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
    *,
    has_bridge_family: bool = True,
) -> str:
    """Both tables with `contents`, replacing existing ones; without `has_bridge_family`, which not every
    kernel has, only the first."""
    sets = _elements(names, contents)
    text = write_removal(names, has_bridge_family=has_bridge_family)
    text += _write_ip(names, subnets, ranges, contents, sets)
    return text + (_write_bridge(names, subnets, sets) if has_bridge_family else "")


def _write_ip(
    names: KernelNames,
    subnets: BridgeSubnets,
    ranges: AddressRanges,
    contents: NftTableContents,
    sets: Mapping[_Set, Mapping[str, str]],
) -> str:
    networks = ", ".join(map(str, subnets.networks))
    own_networks = policy_rules.own_networks_text(subnets)
    bridge, mesh = f'"{names.bridge}"', f'"{names.mesh}"'
    publish = "".join(
        f"fib daddr type local dnat ip to {protocol} dport map @{_map_name(protocol)}\n    "
        for protocol in Protocol
    ).rstrip()
    maps = "".join(
        f"  map {_map_name(protocol)} {{ type inet_service : ipv4_addr . inet_service; "
        f"{_fill(sets['ip', _map_name(protocol)].values())} }}\n"
        for protocol in Protocol
    )
    dns = "ip daddr @resolvers meta l4proto { tcp, udp } th dport 53"
    policies = policy_rules.write_sets(
        contents.policies, policy_rules.elements(contents.policies, contents.cloud)
    )
    # Packets of the mesh interface come from subnets of peers, by rules of its own
    # (`skerry.node.network.mesh.rules`); between nodes they keep their addresses.
    # Requests of a container are filtered before DNAT, and replies are not: those of a published port go to
    # wherever
    # the client is.
    return f"""\
table ip {names.table} {{
{maps}\
  set node_only {{ type ipv4_addr; {_fill(sets["ip", "node_only"])} }}
  set resolvers {{ type ipv4_addr; {_fill(sets["ip", "resolvers"])} }}
  set allowed {{ type ipv4_addr; flags interval; auto-merge; {_fill(map(str, ranges.allowed))} }}
  set metadata {{ type ipv4_addr; flags interval; auto-merge; {_fill(METADATA)} }}
  set private {{ type ipv4_addr; flags interval; auto-merge; {_fill([*PRIVATE, *map(str, ranges.closed)])} }}
{policy_rules.write_from_outside(own_networks)}\
{policies}\
{policy_rules.write_mesh_egress(own_networks)}\
  chain guard {{
    type filter hook prerouting priority raw; policy accept;
    iifname {bridge} ip saddr != {own_networks} drop
    iifname {bridge} ip daddr 127.0.0.0/8 drop
  }}
  chain egress {{
    type filter hook prerouting priority mangle; policy accept;
    iifname != {bridge} accept
    ct direction reply accept
{policy_rules.write_egress(dns)}\
    ip daddr @allowed accept
    ip daddr @metadata drop
{policy_rules.write_internet_egress()}\
    ip saddr @internet_only ip daddr != {own_networks} ip daddr @private fib daddr type != local drop
  }}
  chain node {{
    type filter hook input priority filter; policy accept;
    iifname != {bridge} accept
    ct direction reply accept
    {dns} accept
    ip saddr @mesh_only drop
    ip daddr @allowed accept
    ip saddr @internet_only drop
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
    oifname {bridge} ip daddr @node_only ct direction original meta skuid != 0 drop
  }}
  chain leaving {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {own_networks} oifname != {{ {bridge}, {mesh} }} masquerade
    ip saddr {{ {networks}, 127.0.0.0/8 }} oifname {bridge} ct status dnat masquerade
  }}
  chain entering {{
    type filter hook forward priority filter; policy accept;
    oifname != {bridge} accept
    ip daddr @node_only ct direction original drop
{policy_rules.write_ingress(bridge)}\
    iifname {{ {bridge}, {mesh} }} accept
    ct state established,related accept
    ct status dnat accept
    drop
  }}
}}
"""


def _write_bridge(names: KernelNames, subnets: BridgeSubnets, sets: Mapping[_Set, Mapping[str, str]]) -> str:
    # No packet of or for such a container passes between two ports before the first table has filtered it. On
    # machines
    # that filter bridged packets, those from and to published ports do so afterwards.
    return f"""\
table bridge {names.table} {{
  set links {{ type ifname; {_fill(sets["bridge", "links"])} }}
  set rerouted {{ type ipv4_addr; {_fill(sets["bridge", "rerouted"])} }}
  chain reroute {{
    ether daddr set {subnets.bridge_mac} meta pkttype set host
  }}
  chain arriving {{
    type filter hook prerouting priority dstnat; policy accept;
    iifname != "{names.link_prefix}*" accept
    ether type ip6 drop
    ether type ip iifname @links goto reroute
    ether type ip ip daddr @rerouted goto reroute
  }}
  chain passing {{
    type filter hook forward priority filter; policy accept;
    ether type arp accept
    oifname @links ip daddr @rerouted accept
    oifname @links drop
    iifname @links ether type != ip drop
  }}
}}
"""


def write_changes(
    names: KernelNames, before: NftTableContents, after: NftTableContents, *, has_bridge_family: bool = True
) -> str:
    """Commands that change tables with `before` to `after`; empty if they are equal. Only for contents with
    the same chains (`has_same_chains`)."""
    lines = []
    had = _elements(names, before)
    for (family, name), elements in _elements(names, after).items():
        if family == "bridge" and not has_bridge_family:
            continue
        old = had[family, name]
        removed = [key for key, element in old.items() if elements.get(key) != element]
        added = [element for key, element in elements.items() if old.get(key) != element]
        for verb, some in (("delete", removed), ("add", added)):
            if some:
                lines.append(f"{verb} element {family} {names.table} {name} {{ {', '.join(some)} }}\n")
    return "".join(lines)


def has_same_chains(before: NftTableContents, after: NftTableContents) -> bool:
    """True if elements are all that differs."""
    namespaces = policy_rules.isolated_namespaces
    return namespaces(before.policies) == namespaces(after.policies)


def write_removal(names: KernelNames, *, has_bridge_family: bool = True) -> str:
    # Adding a table first makes deleting it no error where there is none.
    return "".join(
        f"add table {family} {names.table}\ndelete table {family} {names.table}\n"
        for family in FAMILIES
        if family != "bridge" or has_bridge_family
    )


def _elements(names: KernelNames, contents: NftTableContents) -> dict[_Set, dict[str, str]]:
    """The elements of each set, by key."""
    policies = sorted(contents.policies.items())
    node_only = [address for address, policy in policies if policy.ingress is Ingress.NODE]
    rerouted = policy_rules.rerouted(contents.policies)
    host_ports = sorted(contents.host_ports.items())
    return {
        **{
            ("ip", _map_name(kind)): {
                str(port): f"{port} : {target[0]} . {target[1]}"
                for (port, each), target in host_ports
                if each is kind
            }
            for kind in Protocol
        },
        ("ip", "node_only"): _keys(map(str, node_only)),
        **{
            ("ip", name): elements
            for name, elements in policy_rules.elements(contents.policies, contents.cloud).items()
        },
        ("ip", "resolvers"): _keys(contents.resolvers),
        ("bridge", "links"): _keys(f'"{names.link(address)}"' for address in rerouted),
        ("bridge", "rerouted"): _keys(map(str, rerouted)),
    }


def _keys(elements: Iterable[str]) -> dict[str, str]:
    return {element: element for element in elements}


def _map_name(protocol: Protocol) -> str:
    return f"{protocol}_ports"


def _fill(elements: Iterable[str]) -> str:
    filled = ", ".join(elements)
    return f"elements = {{ {filled} }}" if filled else ""
