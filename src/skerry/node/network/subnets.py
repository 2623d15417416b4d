"""The subnet of a node's containers, and names that are derived from addresses. Pure.

The first address of the subnet is the node's own, on the bridge; the others are for containers. A container's
MAC address and the name of its link are derived from its address, so a reused one does not confuse ARP
caches, and a link that a crash left behind can be identified. All names contain the `key` that distinguishes
the Skerrys of one machine.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv4Network, collapse_addresses

from skerry.model import errors
from skerry.model.ipv6_addresses import ipv6_network_of, ipv6_of

WIDEST, NARROWEST = 8, 30
_POOL = IPv4Network("10.64.0.0/10")  # of subnets that are not configured
_USUAL_PREFIX = 24
BRIDGE_PREFIX = "sk-"  # of the bridges of all Skerrys on this machine
MESH_PREFIX = "sw-"  # of their mesh interfaces
_KEY = re.compile(r"[0-9a-f]{8}")
_MAC_PREFIX = "02:53"  # locally administered


def parse_network(text: str, *, field: str) -> IPv4Network:
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise errors.Invalid(
            f"{text[:40]!r} is not an IPv4 network: {error}; write one such as 10.86.0.0/24", field=field
        ) from None


class NodeSubnet:
    """An IPv4 network of containers, and the IPv6 one that follows from it."""

    def __init__(self, text: str) -> None:
        network = parse_network(text, field="network.subnet")
        if not WIDEST <= network.prefixlen <= NARROWEST:
            raise errors.Invalid(
                f"a subnet for containers is a /{WIDEST} to a /{NARROWEST}, not a /{network.prefixlen}",
                field="network.subnet",
            )
        first = network.network_address
        if first.is_loopback or first.is_multicast or first.is_reserved or first.is_unspecified:
            raise errors.Invalid(
                f"{network} cannot be used for hosts; choose a private network such as 10.86.0.0/24",
                field="network.subnet",
            )
        self.network: IPv4Network = network
        self.prefix = network.prefixlen
        self.gateway = first + 1
        self._first = first + 2  # of containers
        self.network6 = ipv6_network_of(network)
        self.gateway6 = ipv6_of(self.gateway)
        self.size = network.num_addresses - 3  # without those of network, gateway and broadcast

    def __str__(self) -> str:
        return str(self.network)

    def has(self, address: IPv4Address) -> bool:
        """True if a container may have `address`."""
        return address in self.network and 0 <= self.number(address) < self.size

    def number(self, address: IPv4Address) -> int:
        """The index of a container's address, from 0 on."""
        return int(address) - int(self._first)

    def address(self, number: int) -> IPv4Address:
        return self._first + number


class BridgeSubnets:
    """The subnets of one bridge: `current`, for new containers, and former ones, which stay while containers
    have addresses of them. `current` is None while the node has none."""

    def __init__(self, current: NodeSubnet | None = None, former: Iterable[NodeSubnet] = ()) -> None:
        self.replace(current, former)
        # Whether containers have IPv6 addresses beside these: `Network` decides once, before there are any.
        self.has_ipv6 = False
        # Containers cache it, so it stays when the subnet changes; `Bridge` reads it from the kernel.
        self.bridge_mac = mac_of(self.all[0].gateway) if self.all else ""

    def replace(self, current: NodeSubnet | None, former: Iterable[NodeSubnet]) -> None:
        """Set exactly these."""
        self.current = current
        self.former = tuple(each for each in former if current is None or each.network != current.network)

    @property
    def all(self) -> tuple[NodeSubnet, ...]:
        return self.former if self.current is None else (self.current, *self.former)

    @property
    def networks(self) -> tuple[IPv4Network, ...]:
        """The ranges of all of them, without overlaps."""
        return tuple(collapse_addresses(each.network for each in self.all))

    def of(self, address: IPv4Address) -> NodeSubnet:
        """The subnet of a container with `address`; the current one, if they overlap."""
        for each in self.all:
            if each.has(address):
                return each
        # Not StopIteration, which no future can carry out of a thread.
        raise LookupError(f"{address} is in none of {', '.join(map(str, self.all)) or 'no subnets'}")

    def switch(self, subnet: NodeSubnet) -> None:
        """Use `subnet` for new containers from now on."""
        self.replace(subnet, self.all)

    def keep_only(self, networks: Collection[IPv4Network]) -> list[NodeSubnet]:
        """Drop former ones that are not among `networks`; returns those."""
        dropped = [each for each in self.former if each.network not in networks]
        self.former = tuple(each for each in self.former if each.network in networks)
        return dropped


def choose(key: str, in_use: Iterable[IPv4Network]) -> str:
    """A subnet for a Skerry without an assigned one: the same for the same `key`, unless it is `in_use`."""
    occupied = list(in_use)
    size = 1 << _USUAL_PREFIX - _POOL.prefixlen
    first = int(key, 16)
    for number in range(size):
        start = _POOL.network_address + ((first + number) % size << 32 - _USUAL_PREFIX)
        network = IPv4Network((start, _USUAL_PREFIX))
        if not any(network.overlaps(each) for each in occupied):
            return str(network)
    raise errors.Unavailable(
        f"no part of {_POOL} is free on this machine; choose a network with the setting network.subnet"
    )


def mac_of(address: IPv4Address) -> str:
    """The MAC address of the container with `address`."""
    return ":".join([_MAC_PREFIX, *(f"{byte:02x}" for byte in address.packed)])


class KernelNames:
    """Names of one Skerry's objects in the kernel."""

    def __init__(self, key: str) -> None:
        if not _KEY.fullmatch(key):
            raise ValueError(f"a key is 8 hex digits, not {key!r}")
        self.link_prefix = f"s{key}"
        self._link = re.compile(rf"{self.link_prefix}[0-9a-f]{{6}}")
        self.bridge = f"{BRIDGE_PREFIX}{key}"
        self.mesh = f"{MESH_PREFIX}{key}"
        self.table = f"skerry_{key}"
        self.mesh_table = f"skerry_{key}_mesh"
        self.isolation_table = f"skerry_{key}_apart"
        self.services_table = f"skerry_{key}_services"
        # Of the route to virtual addresses: two Skerrys may have the same range.
        self.service_route_metric = 1000 + int(key, 16) % 60_000
        # Links to be removed are put in a group, since the kernel removes a group at once. Never group 0,
        # which
        # contains every link of the machine.
        self.doomed_group = int(key, 16) & 0x3FFFFFFF | 0x40000000

    def link(self, address: IPv4Address) -> str:
        """The node's end of the link to `address`: 15 characters, the limit of link names. The first byte of
        the address is not in it: all addresses of a subnet share that."""
        return f"{self.link_prefix}{address.packed[1:].hex()}"

    def is_link(self, name: str) -> bool:
        """True if a link called `name` is one of ours, known or not."""
        return self._link.fullmatch(name) is not None
