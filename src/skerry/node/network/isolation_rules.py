"""Rules for isolated containers, as text for nft. Pure.

Tables of our own, which exist only while something is isolated. The one of the family `bridge` ties each link
to its IP and MAC addresses, and allows it to talk to the node's end of the bridge only. So in the others, of
the families `ip` and `ip6`, the address identifies the container: it may open a limited number of connections
to the outside, and receives only replies. `skerry.node.network.isolation` runs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from ipaddress import IPv4Address, IPv4Network

import msgspec

from skerry.node.network.rule_families import IPV4, IPV6, RuleFamily, address_families, table_families
from skerry.node.network.subnets import BridgeSubnets, KernelNames, mac_of

# Concurrent connections of one container: the kernel's table of them is shared, and a machine whose table is
# full
# accepts no new ones. Closed ones do not count.
MOST_CONNECTIONS = 512


class IsolatedAddresses(msgspec.Struct, frozen=True):
    """The isolated addresses, and name servers that they may reach nevertheless."""

    addresses: frozenset[IPv4Address] = frozenset()
    resolvers: tuple[str, ...] = ()


def write_tables(
    names: KernelNames, subnets: BridgeSubnets, closed: Iterable[IPv4Network], isolated: IsolatedAddresses
) -> str:
    """All tables, replacing existing ones. `closed`: networks of this cloud."""
    families = table_families(has_ipv6=subnets.has_ipv6)
    sets = dict(_elements(names, isolated.addresses, families))
    text = write_removal(names, families) + _write_bridge(names, subnets, sets)
    networks = tuple(closed)
    for family in address_families(families):
        text += _write_addresses(names, subnets, networks, isolated, family)
    return text


def _write_bridge(
    names: KernelNames, subnets: BridgeSubnets, sets: Mapping[tuple[str, str], Sequence[str]]
) -> str:
    gateways = ", ".join(str(each.gateway) for each in subnets.all)
    if subnets.has_ipv6:
        identities6 = (
            f"  set identities6 {{ type ifname . ether_addr . ipv6_addr; "
            f"{_fill(sets['bridge', 'identities6'])} }}\n"
        )
        source6 = "    ether type ip6 iifname . ether saddr . ip6 saddr @identities6 accept\n"
        destination6 = "    ether type ip6 oifname . ether daddr . ip6 daddr @identities6 accept\n"
    else:
        identities6 = source6 = destination6 = ""
    # Frames to some groups skip prerouting, and the bridge learns addresses from them too.
    return f"""\
table bridge {names.isolation_table} {{
  set links {{ type ifname; {_fill(sets["bridge", "links"])} }}
  set addresses {{ type ifname . ipv4_addr; {_fill(sets["bridge", "addresses"])} }}
  set identities {{ type ifname . ether_addr . ipv4_addr; {_fill(sets["bridge", "identities"])} }}
{identities6}\
  chain check_source {{
    ether type ip iifname . ether saddr . ip saddr @identities accept
{source6}\
    ether type arp arp daddr ip {{ {gateways} }} iifname . ether saddr . arp saddr ip @identities \
iifname . arp saddr ether . arp saddr ip @identities accept
    drop
  }}
  chain check_destination {{
    ether type ip oifname . ether daddr . ip daddr @identities accept
{destination6}\
    ether type arp oifname . arp daddr ip @addresses accept
    drop
  }}
  chain from_guest {{
    type filter hook prerouting priority dstnat; policy accept;
    iifname @links goto check_source
  }}
  chain to_node {{
    type filter hook input priority filter; policy accept;
    iifname @links goto check_source
  }}
  chain to_guest {{
    type filter hook output priority filter; policy accept;
    oifname @links goto check_destination
  }}
  chain between_ports {{
    type filter hook forward priority filter; policy accept;
    iifname @links drop
    oifname @links drop
  }}
}}
"""


def _write_addresses(
    names: KernelNames,
    subnets: BridgeSubnets,
    closed: Iterable[IPv4Network],
    isolated: IsolatedAddresses,
    family: RuleFamily,
) -> str:
    ip, kind, bridge = family.name, family.type, f'"{names.bridge}"'
    own = [*map(family.network, subnets.networks), *map(family.network, closed)]
    shut = ", ".join([*family.metadata, *family.private, *own])
    addresses = sum(network.num_addresses for network in subnets.networks)
    guests = [family.address(each) for each in sorted(isolated.addresses)]
    resolvers = isolated.resolvers if family is IPV4 else ()  # they are asked by IPv4
    return f"""\
table {ip} {names.isolation_table} {{
  set guests {{ type {kind}; {_fill(guests)} }}
  set resolvers {{ type {kind}; {_fill(resolvers)} }}
  set connected {{ type {kind}; size {addresses}; flags dynamic; }}
  set closed {{ type {kind}; flags interval; auto-merge; elements = {{ {shut} }} }}
  chain outside {{
    {ip} daddr @resolvers meta l4proto {{ tcp, udp }} th dport 53 accept
    {ip} daddr @closed drop
    fib daddr type != unicast drop
  }}
  chain leaving {{
    type filter hook prerouting priority raw; policy accept;
    iifname {bridge} {ip} saddr @guests goto outside
  }}
  chain beginning {{
    type filter hook prerouting priority filter; policy accept;
    iifname {bridge} {ip} saddr @guests ct state new \
add @connected {{ {ip} saddr ct count over {MOST_CONNECTIONS} }} drop
  }}
  chain entering {{
    type filter hook forward priority filter; policy accept;
    oifname {bridge} {ip} daddr @guests ct direction reply accept
    oifname {bridge} {ip} daddr @guests drop
  }}
}}
"""


def write_changes(
    names: KernelNames, before: Set[IPv4Address], after: Set[IPv4Address], families: Sequence[str]
) -> str:
    """Commands that change tables with `before` to `after`; empty if they are equal."""
    return "".join(
        f"{verb} element {family} {names.isolation_table} {name} {{ {', '.join(elements)} }}\n"
        for verb, addresses in (("delete", before - after), ("add", after - before))
        if addresses
        for (family, name), elements in _elements(names, addresses, families)
    )


def write_removal(names: KernelNames, families: Iterable[str]) -> str:
    # Adding a table first makes deleting it no error where there is none.
    return "".join(
        f"add table {family} {names.isolation_table}\ndelete table {family} {names.isolation_table}\n"
        for family in families
    )


def _elements(
    names: KernelNames, addresses: Set[IPv4Address], families: Sequence[str]
) -> Sequence[tuple[tuple[str, str], Sequence[str]]]:
    """The elements of each set for `addresses`, by family and name."""
    ordered = sorted(addresses)
    links = [(f'"{names.link(each)}"', mac_of(each), each) for each in ordered]
    found: list[tuple[tuple[str, str], Sequence[str]]] = [
        (("bridge", "links"), [link for link, _, _ in links]),
        (("bridge", "addresses"), [f"{link} . {address}" for link, _, address in links]),
        (("bridge", "identities"), [f"{link} . {mac} . {address}" for link, mac, address in links]),
    ]
    if IPV6.name in families:
        found.append(
            (
                ("bridge", "identities6"),
                [f"{link} . {mac} . {IPV6.address(address)}" for link, mac, address in links],
            )
        )
    return [
        *found,
        *(
            ((family.name, "guests"), [family.address(each) for each in ordered])
            for family in address_families(families)
        ),
    ]


def _fill(elements: Sequence[str]) -> str:
    return f"elements = {{ {', '.join(elements)} }}" if elements else ""
