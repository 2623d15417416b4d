"""Rules for isolated containers, as text for nft. Pure.

Two tables of our own, which exist only while something is isolated. The one of the family `bridge` ties each
link to its IP and MAC address, and allows it to talk to the node's end of the bridge only. So in the other,
of the family `ip`, the address identifies the container: it may open a limited number of connections to the
outside, and receives only replies. `skerry.node.network.isolation` runs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from ipaddress import IPv4Address, IPv4Network

import msgspec

from skerry.node.network.address_ranges import METADATA, PRIVATE
from skerry.node.network.subnets import BridgeSubnets, KernelNames, mac_of

FAMILIES = ("bridge", "ip")
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
    """Both tables, replacing existing ones. `closed`: networks of this cloud."""
    table, bridge = names.isolation_table, f'"{names.bridge}"'
    shut = ", ".join([*METADATA, *PRIVATE, *map(str, subnets.networks), *map(str, closed)])
    gateways = ", ".join(str(each.gateway) for each in subnets.all)
    addresses = sum(network.num_addresses for network in subnets.networks)
    sets = dict(_elements(names, isolated.addresses))
    # Frames to some groups skip prerouting, and the bridge learns addresses from them too.
    return f"""\
{write_removal(names)}\
table bridge {table} {{
  set links {{ type ifname; {_fill(sets["bridge", "links"])} }}
  set addresses {{ type ifname . ipv4_addr; {_fill(sets["bridge", "addresses"])} }}
  set identities {{ type ifname . ether_addr . ipv4_addr; {_fill(sets["bridge", "identities"])} }}
  chain check_source {{
    ether type ip iifname . ether saddr . ip saddr @identities accept
    ether type arp arp daddr ip {{ {gateways} }} iifname . ether saddr . arp saddr ip @identities \
iifname . arp saddr ether . arp saddr ip @identities accept
    drop
  }}
  chain check_destination {{
    ether type ip oifname . ether daddr . ip daddr @identities accept
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
table ip {table} {{
  set guests {{ type ipv4_addr; {_fill(sets["ip", "guests"])} }}
  set resolvers {{ type ipv4_addr; {_fill(isolated.resolvers)} }}
  set connected {{ type ipv4_addr; size {addresses}; flags dynamic; }}
  set closed {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {shut} }} }}
  chain outside {{
    ip daddr @resolvers meta l4proto {{ tcp, udp }} th dport 53 accept
    ip daddr @closed drop
    fib daddr type != unicast drop
  }}
  chain leaving {{
    type filter hook prerouting priority raw; policy accept;
    iifname {bridge} ip saddr @guests goto outside
  }}
  chain beginning {{
    type filter hook prerouting priority filter; policy accept;
    iifname {bridge} ip saddr @guests ct state new \
add @connected {{ ip saddr ct count over {MOST_CONNECTIONS} }} drop
  }}
  chain entering {{
    type filter hook forward priority filter; policy accept;
    oifname {bridge} ip daddr @guests ct direction reply accept
    oifname {bridge} ip daddr @guests drop
  }}
}}
"""


def write_changes(names: KernelNames, before: Set[IPv4Address], after: Set[IPv4Address]) -> str:
    """Commands that change tables with `before` to `after`; empty if they are equal."""
    return "".join(
        f"{verb} element {family} {names.isolation_table} {name} {{ {', '.join(elements)} }}\n"
        for verb, addresses in (("delete", before - after), ("add", after - before))
        if addresses
        for (family, name), elements in _elements(names, addresses)
    )


def write_removal(names: KernelNames) -> str:
    # Adding a table first makes deleting it no error where there is none.
    return "".join(
        f"add table {family} {names.isolation_table}\ndelete table {family} {names.isolation_table}\n"
        for family in FAMILIES
    )


def _elements(
    names: KernelNames, addresses: Set[IPv4Address]
) -> Sequence[tuple[tuple[str, str], Sequence[str]]]:
    """The elements of each set for `addresses`, by family and name."""
    identities = [(f'"{names.link(each)}"', mac_of(each), str(each)) for each in sorted(addresses)]
    return (
        (("bridge", "links"), [link for link, _, _ in identities]),
        (("bridge", "addresses"), [f"{link} . {address}" for link, _, address in identities]),
        (("bridge", "identities"), [" . ".join(each) for each in identities]),
        (("ip", "guests"), [address for _, _, address in identities]),
    )


def _fill(elements: Sequence[str]) -> str:
    return f"elements = {{ {', '.join(elements)} }}" if elements else ""
