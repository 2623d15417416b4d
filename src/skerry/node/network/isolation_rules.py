"""The rules around containers that are kept apart, as text for nft. Pure.

Two tables of our own, which are there only while somebody is kept apart. The one of the family `bridge` ties
each link to its address and hardware address, and lets it speak with the node's end of the bridge and with
nobody else on it. So in the other, of the family `ip`, an address tells who it is: what such a container
sends goes out into the world, in so many connections at once, and what comes to it is an answer.
`skerry.node.network.isolation` runs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from ipaddress import IPv4Address, IPv4Network

import msgspec

from skerry.node.network.address_ranges import METADATA, PRIVATE
from skerry.node.network.subnets import BridgeSubnets, KernelNames, mac_of

FAMILIES = ("bridge", "ip")
# Connections that one of them may have at once: the table that the kernel keeps of them is everybody's, and a
# machine whose table is full talks with nobody new. One that was closed does not count.
MOST_CONNECTIONS = 512


class IsolatedAttachment(msgspec.Struct, frozen=True):
    """Who is kept apart, and what they may reach all the same: name servers, which may be near."""

    addresses: frozenset[IPv4Address] = frozenset()
    resolvers: tuple[str, ...] = ()


def write_tables(
    names: KernelNames, subnets: BridgeSubnets, closed: Iterable[IPv4Network], apart: IsolatedAttachment
) -> str:
    """Both tables, in place of whatever they were before. `closed`: networks of this cloud."""
    table, bridge = names.apart_table, f'"{names.bridge}"'
    shut = ", ".join([*METADATA, *PRIVATE, *map(str, subnets.networks), *map(str, closed)])
    gateways = ", ".join(str(each.gateway) for each in subnets.all)
    addresses = sum(network.num_addresses for network in subnets.networks)
    sets = dict(_elements(names, apart.addresses))
    # Frames to some groups come in without prerouting, and they too teach the bridge who is where.
    return f"""\
{write_removal(names)}\
table bridge {table} {{
  set links {{ type ifname; {_fill(sets["bridge", "links"])} }}
  set places {{ type ifname . ipv4_addr; {_fill(sets["bridge", "places"])} }}
  set identities {{ type ifname . ether_addr . ipv4_addr; {_fill(sets["bridge", "identities"])} }}
  chain honest {{
    ether type ip iifname . ether saddr . ip saddr @identities accept
    ether type arp arp daddr ip {{ {gateways} }} iifname . ether saddr . arp saddr ip @identities \
iifname . arp saddr ether . arp saddr ip @identities accept
    drop
  }}
  chain meant {{
    ether type ip oifname . ether daddr . ip daddr @identities accept
    ether type arp oifname . arp daddr ip @places accept
    drop
  }}
  chain saying {{
    type filter hook prerouting priority dstnat; policy accept;
    iifname @links goto honest
  }}
  chain whispering {{
    type filter hook input priority filter; policy accept;
    iifname @links goto honest
  }}
  chain hearing {{
    type filter hook output priority filter; policy accept;
    oifname @links goto meant
  }}
  chain passing {{
    type filter hook forward priority filter; policy accept;
    iifname @links drop
    oifname @links drop
  }}
}}
table ip {table} {{
  set guests {{ type ipv4_addr; {_fill(sets["ip", "guests"])} }}
  set resolvers {{ type ipv4_addr; {_fill(apart.resolvers)} }}
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
    """What makes of tables that keep `before` apart such as keep `after`; empty if they are the same."""
    return "".join(
        f"{verb} element {family} {names.apart_table} {name} {{ {', '.join(elements)} }}\n"
        for verb, addresses in (("delete", before - after), ("add", after - before))
        if addresses
        for (family, name), elements in _elements(names, addresses)
    )


def write_removal(names: KernelNames) -> str:
    # Adding a table first makes deleting it no error where there is none.
    return "".join(
        f"add table {family} {names.apart_table}\ndelete table {family} {names.apart_table}\n"
        for family in FAMILIES
    )


def _elements(
    names: KernelNames, addresses: Set[IPv4Address]
) -> Sequence[tuple[tuple[str, str], Sequence[str]]]:
    """What stands for `addresses` in each set, by family and name."""
    known = [(f'"{names.link(each)}"', mac_of(each), str(each)) for each in sorted(addresses)]
    return (
        (("bridge", "links"), [link for link, _, _ in known]),
        (("bridge", "places"), [f"{link} . {address}" for link, _, address in known]),
        (("bridge", "identities"), [" . ".join(each) for each in known]),
        (("ip", "guests"), [address for _, _, address in known]),
    )


def _fill(elements: Sequence[str]) -> str:
    return f"elements = {{ {', '.join(elements)} }}" if elements else ""
