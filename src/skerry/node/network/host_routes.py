"""The routes of this machine, and whether a subnet is free: no other route may overlap it.

`parse` reads the kernel's table of IPv4 routes, `parse_ipv6` the other; `check_free` decides. Default routes,
also as two halves, do not count.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import NamedTuple

from skerry.model import errors
from skerry.node.network.subnets import WIDEST, NodeSubnet

# The calling thread's, which need not be in the namespace of the process.
_TABLE = Path("/proc/thread-self/net/route")
_TABLE6 = Path("/proc/thread-self/net/ipv6_route")


class HostRoute(NamedTuple):
    """Packets to `network` leave by `interface`; `*` for unreachable ones."""

    interface: str
    network: IPv4Network


class HostRoute6(NamedTuple):
    """The same of IPv6."""

    interface: str
    network: IPv6Network


def parse(text: str) -> list[HostRoute]:
    """The routes in /proc/net/route: numbers in the machine's byte order, after a header."""
    found = []
    for line in text.splitlines()[1:]:
        interface, destination, _, _, _, _, _, mask, *_ = line.split()
        address, bits = (struct.pack("=I", int(number, 16)) for number in (destination, mask))
        found.append(
            HostRoute(interface, ipaddress.IPv4Network((address, int.from_bytes(bits, "big").bit_count())))
        )
    return found


def read() -> list[HostRoute]:
    return parse(_TABLE.read_text())


def parse_ipv6(text: str) -> list[HostRoute6]:
    """The routes in /proc/net/ipv6_route: addresses and lengths of prefixes, in hexadecimal."""
    found = []
    for line in text.splitlines():
        destination, prefix, *_, interface = line.split()
        network = IPv6Network((bytes.fromhex(destination), int(prefix, 16)), strict=False)
        found.append(HostRoute6(interface, network))
    return found


def read_ipv6() -> list[HostRoute6]:
    """None, where the kernel has no IPv6."""
    return parse_ipv6(_TABLE6.read_text()) if _TABLE6.exists() else []


def networks_in_use(routes: Iterable[HostRoute], bridge: str) -> list[IPv4Network]:
    """The networks with `routes` through other interfaces than our own `bridge`."""
    return [
        route.network for route in routes if route.interface != bridge and route.network.prefixlen >= WIDEST
    ]


def check_free(subnet: NodeSubnet, routes: Iterable[HostRoute], bridge: str) -> None:
    """Raise FailedPrecondition if `routes` to `subnet` use other interfaces than our own `bridge`."""
    for route in routes:
        if (
            route.interface != bridge
            and route.network.prefixlen >= WIDEST
            and route.network.overlaps(subnet.network)
        ):
            raise errors.FailedPrecondition(
                f"the subnet {subnet} of containers overlaps {route.network}, which this machine reaches by "
                f"{route.interface}; choose another with the setting network.subnet"
            )
