"""The two families of addresses in the words of nft, so that one text of rules is written for both. Pure.

Rules are decided by IPv4 addresses; those of IPv6 follow from them (`skerry.model.ipv6_addresses`), so that
they mean the same. Used by the modules that write rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from typing import Final, NamedTuple

from skerry.model.address_ranges import METADATA, METADATA6, PRIVATE, PRIVATE6
from skerry.model.ipv6_addresses import ipv6_network_of, ipv6_of


class RuleFamily(NamedTuple):
    """A family of tables, and its words."""

    name: str  # of the tables, and of the header of packets
    type: str  # of addresses in sets
    icmp: str
    loopback: str
    metadata: tuple[str, ...]
    private: tuple[str, ...]

    def address(self, address: IPv4Address) -> str:
        """The address of this family of whoever has `address`."""
        return str(address if self is IPV4 else ipv6_of(address))

    def network(self, network: IPv4Network) -> str:
        return str(network if self is IPV4 else ipv6_network_of(network))

    def own(self, networks: Iterable[IPv4Network | IPv6Network]) -> list[str]:
        """Those of `networks` that are of this family."""
        version = 4 if self is IPV4 else 6
        return [str(each) for each in networks if each.version == version]


IPV4: Final = RuleFamily("ip", "ipv4_addr", "icmp", "127.0.0.0/8", METADATA, PRIVATE)
IPV6: Final = RuleFamily("ip6", "ipv6_addr", "icmpv6", "::1", METADATA6, PRIVATE6)
BRIDGE: Final = "bridge"


def table_families(*, has_ipv6: bool, has_bridge: bool = True) -> tuple[str, ...]:
    """The families of tables on a node. Without rules for bridges there is no IPv6: they keep containers
    from sending it to each other around the rules."""
    return (
        IPV4.name,
        *((IPV6.name,) if has_ipv6 and has_bridge else ()),
        *((BRIDGE,) if has_bridge else ()),
    )


def address_families(families: Iterable[str]) -> list[RuleFamily]:
    """Those of `families` that have addresses."""
    present = frozenset(families)
    return [each for each in (IPV4, IPV6) if each.name in present]
