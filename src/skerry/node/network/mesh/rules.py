"""Rules of the mesh interface, as text for nft. Pure.

One table of our own, beside that of `skerry.node.network.port_rules`, which exists while the interface does.
Packets from the mesh come from subnets of peers and go to containers here, or to other peers, for which this
node relays: never to this machine itself, which answers echo requests only, nor to its other networks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Network

from skerry.kit.networks import Network
from skerry.model.ipv6_addresses import ipv6_network_of
from skerry.model.mesh import PROBE_NETWORK
from skerry.node.network.subnets import KernelNames

FAMILIES = ("inet",)


def write_table(
    names: KernelNames, own: Collection[IPv4Network], peers: Collection[IPv4Network], *, has_ipv6: bool
) -> str:
    """The table, replacing an existing one. `own`: subnets of this node; `peers`: of others."""
    mesh = f'"{names.mesh}"'
    networks = sorted(own)
    # Every packet is compared with it: a node has one subnet but for a while after a change, and a comparison
    # takes less than a set.
    here = str(networks[0]) if len(networks) == 1 else "@own"
    own6, peers6 = (list(map(ipv6_network_of, each if has_ipv6 else ())) for each in (own, peers))
    # Containers send packets as large as their own links take: without smaller segments the first of every
    # connection would be refused, and some firewalls drop the message that says so.
    return f"""\
{write_removal(names)}\
table inet {names.mesh_table} {{
  set own {{ type ipv4_addr; flags interval; auto-merge; {_fill(networks)} }}
  set peers {{ type ipv4_addr; flags interval; auto-merge; {_fill(peers)} }}
  set own6 {{ type ipv6_addr; flags interval; auto-merge; {_fill(own6)} }}
  set peers6 {{ type ipv6_addr; flags interval; auto-merge; {_fill(peers6)} }}
  chain guard {{
    type filter hook prerouting priority raw; policy accept;
    iifname != {mesh} accept
    ip daddr {here} ip saddr @peers accept
    ip saddr @peers ip daddr @peers accept
    ip6 saddr {PROBE_NETWORK} icmpv6 type {{ echo-request, echo-reply }} accept
    ip6 saddr @peers6 ip6 daddr @own6 accept
    ip6 saddr @peers6 ip6 daddr @peers6 accept
    drop
  }}
  chain to_node {{
    type filter hook input priority filter; policy accept;
    iifname != {mesh} accept
    ct state established,related accept
    icmp type echo-request accept
    icmpv6 type {{ echo-request, echo-reply }} accept
    drop
  }}
  chain passing {{
    type filter hook forward priority mangle; policy accept;
    oifname != {mesh} accept
    tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
    ip saddr {here} accept
    ip saddr @peers accept
    ip6 saddr @own6 accept
    ip6 saddr @peers6 accept
    drop
  }}
}}
"""


def write_removal(names: KernelNames) -> str:
    # Adding a table first makes deleting it no error where there is none.
    return f"add table inet {names.mesh_table}\ndelete table inet {names.mesh_table}\n"


def _fill(networks: Iterable[Network]) -> str:
    elements = ", ".join(sorted(map(str, networks)))
    return f"elements = {{ {elements} }}" if elements else ""
