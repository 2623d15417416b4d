"""Address ranges that containers and functions cannot reach, by default or by their policy. Pure.

`METADATA` is closed to all of them: those services give out credentials of the machine. `PRIVATE` is the
machine's surroundings, not the internet. `METADATA6` and `PRIVATE6` are the same of IPv6, with IPv4 addresses
that a translator of the network (NAT64) reaches.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Address, IPv6Network
from typing import Final

_NAT64: Final = IPv6Network("64:ff9b::/96")


def _behind_nat64(networks: tuple[str, ...]) -> tuple[str, ...]:
    """The networks as the well-known prefix of NAT64 has them (RFC 6052)."""
    return tuple(
        str(
            IPv6Network(
                (
                    IPv6Address(int(_NAT64.network_address) + int(each.network_address)),
                    _NAT64.prefixlen + each.prefixlen,
                )
            )
        )
        for each in map(IPv4Network, networks)
    )


METADATA: Final = (
    # Link-local. 169.254.169.254 is the metadata service of AWS, Azure, Google (metadata.google.internal),
    # DigitalOcean, Hetzner, OpenStack, Oracle, Vultr and others; 169.254.170.2 and .23 hand out credentials
    # on AWS, 169.254.0.23 is Tencent's, 169.254.42.42 Scaleway's.
    "169.254.0.0/16",
    "100.100.100.200/32",  # Alibaba
    "168.63.129.16/32",  # Azure: the wire server, with certificates and settings of extensions
    "192.0.0.192/32",  # Oracle, the older service
)

PRIVATE: Final = (
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "224.0.0.0/4",
    "240.0.0.0/4",
)

METADATA6: Final = (
    "fe80::/10",  # link-local; fe80::a9fe:a9fe is OpenStack's
    "fd00:ec2::/32",  # AWS
    "fd20:ce::/32",  # Google
    "fd00:c1::/32",  # Oracle
    "fd00:42::/32",  # Scaleway
    *_behind_nat64(METADATA),
)

PRIVATE6: Final = (
    "::/16",  # the loopback, and IPv4 addresses in the notation of IPv6
    "64:ff9b:1::/48",  # translators of one site
    "100::/64",
    "2001::/32",  # tunnels to IPv4 addresses: Teredo, and 6to4
    "2002::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
    *_behind_nat64(PRIVATE),
)
