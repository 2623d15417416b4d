"""Rules for the name server, as text for nft. Pure.

A table of its own, beside those of the firewall. It drops packets of a container that asks too often before
they cost anything, and so that those of others still fit the socket; and it keeps a published port 53, which
is forwarded at every address of the machine, from being forwarded at the address of the name server.
"""

from __future__ import annotations

from collections.abc import Sequence

from skerry.node.network.subnets import KernelNames, NodeSubnet

FAMILIES = ("ip",)


def table_name(names: KernelNames) -> str:
    return f"{names.table}_dns"


def write_table(names: KernelNames, subnets: Sequence[NodeSubnet], rate: int | None) -> str:
    """The table, replacing an existing one. `rate`: packets of one container in a second; None for a kernel
    without limits (CONFIG_NFT_LIMIT)."""
    gateways = ", ".join(str(each.gateway) for each in subnets)
    questions = f'iifname "{names.bridge}" ip daddr {{ {gateways} }} meta l4proto {{ tcp, udp }} th dport 53'
    own = "\n    ".join(
        f'iifname "{names.bridge}" ip daddr {each.gateway} meta l4proto {{ tcp, udp }} th dport 53 '
        f"dnat to {each.gateway}"
        for each in subnets
    )
    limit = f"""\
  set askers {{ type ipv4_addr; size 65535; flags dynamic; timeout 1m; }}
  chain too_often {{
    type filter hook prerouting priority -350; policy accept;
    {questions} update @askers {{ ip saddr limit rate over {rate}/second burst {rate} packets }} drop
  }}
"""
    return f"""\
{write_removal(names)}\
table ip {table_name(names)} {{
{"" if rate is None else limit}\
  chain own_port {{
    type nat hook prerouting priority -101; policy accept;
    {own}
  }}
}}
"""


def write_removal(names: KernelNames) -> str:
    # Adding a table first makes deleting it no error where there is none.
    return f"add table ip {table_name(names)}\ndelete table ip {table_name(names)}\n"
