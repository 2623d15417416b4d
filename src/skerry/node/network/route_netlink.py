"""Changes links, addresses, routes and neighbours by netlink, in the caller's network namespace.

For what is made and removed with every container and every worker of a function (`bridge`): a run of `ip`
costs about three milliseconds of processor time, what it asks the kernel for a tenth of that. Everything else
uses `commands`. Requests are built by functions without effects; `RouteSocket.send` sends many at once, in
order. Everything blocks, for as long as the kernel takes.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv6Address
from types import TracebackType
from typing import Final, NamedTuple

from skerry.model import errors

Address = IPv4Address | IPv6Address

_NEW_LINK, _DELETE_LINK = 16, 17
_NEW_ADDRESS, _NEW_ROUTE, _NEW_NEIGHBOUR, _DELETE_NEIGHBOUR = 20, 24, 28, 29
_ERROR: Final = 2
_REQUEST, _ACKNOWLEDGE, _REPLACE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
_NEW: Final = _CREATE | _EXCLUSIVE
_NESTED: Final = 0x8000
_HEADER: Final = struct.Struct("=IHHII")  # length, kind, flags, sequence, port id
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, kind
_LINK: Final = struct.Struct("=BxHiII")  # family, type, index, flags, mask of flags
_ADDRESS: Final = struct.Struct("=BBBBI")  # family, prefix, flags, scope, link
_ROUTE: Final = struct.Struct("=BBBBBBBBI")  # family, two prefixes, tos, table, protocol, scope, type, flags
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")  # family, link, state, flags, type
_U8, _U32 = struct.Struct("=B"), struct.Struct("=I")
_NUMBER: Final = struct.Struct("=i")  # the error in an answer, negated
_IFF_UP: Final = 1
# Attributes of links.
_MAC, _NAME, _MASTER, _KIND_AND_DATA, _BY_FAMILY, _GROUP, _NAMESPACE = 1, 3, 10, 18, 26, 27, 28
_KIND, _DATA, _PORT_KIND, _PORT_DATA = 1, 2, 4, 5
_PEER: Final = 1  # of a veth link
_HAIRPIN: Final = 4  # of a port of a bridge
_ADDRESS_MODE, _NO_ADDRESSES = 8, 1  # of IPv6 on a link
_FULL, _LOCAL, _BROADCAST, _FLAGS = 1, 2, 4, 8  # attributes of addresses
_NO_DETECTION: Final = 0x02
_LINK_OF_ROUTE, _GATEWAY = 4, 5
_MAIN_TABLE, _BOOT, _UNICAST, _ON_LINK = 254, 3, 1, 4
_DESTINATION, _HARDWARE, _PERMANENT = 1, 2, 0x80  # of neighbours
# Each answer takes about a kilobyte of the socket's buffer, of which it has 200.
_AT_ONCE: Final = 64
_BUFFER: Final = 1 << 16


class RouteRequest(NamedTuple):
    """One change; `purpose` names it in errors."""

    purpose: str
    kind: int
    flags: int
    body: bytes


def add_veth(name: str, mac: str, peer: str, namespace: int) -> RouteRequest:
    """A pair of links: `name` here, and `peer` in the network namespace that is open as `namespace`."""
    other = _LINK.pack(0, 0, 0, 0, 0) + _text(_NAME, peer) + _attribute(_NAMESPACE, _U32.pack(namespace))
    kind = _text(_KIND, "veth") + _nested(_DATA, _nested(_PEER, other))
    body = _LINK.pack(0, 0, 0, 0, 0) + _attribute(_MAC, _hardware(mac)) + _text(_NAME, name)
    return RouteRequest(f"link add {name}", _NEW_LINK, _NEW, body + _nested(_KIND_AND_DATA, kind))


def set_up(name: str) -> RouteRequest:
    body = _LINK.pack(0, 0, 0, _IFF_UP, _IFF_UP) + _text(_NAME, name)
    return RouteRequest(f"link set {name} up", _NEW_LINK, 0, body)


def join_bridge(name: str, bridge: int) -> RouteRequest:
    """Make a link a port of the bridge with the index `bridge`, and set it up."""
    body = _LINK.pack(0, 0, 0, _IFF_UP, _IFF_UP) + _text(_NAME, name) + _attribute(_MASTER, _U32.pack(bridge))
    return RouteRequest(f"link set {name} master", _NEW_LINK, 0, body)


def set_hairpin(name: str) -> RouteRequest:
    """Let a port of a bridge get back what came from it."""
    port = _text(_PORT_KIND, "bridge") + _nested(_PORT_DATA, _attribute(_HAIRPIN, _U8.pack(1)))
    body = _LINK.pack(0, 0, 0, 0, 0) + _text(_NAME, name) + _nested(_KIND_AND_DATA, port)
    return RouteRequest(f"link set {name} hairpin", _NEW_LINK, 0, body)


def set_no_addresses(name: str) -> RouteRequest:
    """The kernel gives the link no IPv6 address by itself."""
    ipv6 = _nested(socket.AF_INET6, _attribute(_ADDRESS_MODE, _U8.pack(_NO_ADDRESSES)))
    body = _LINK.pack(0, 0, 0, 0, 0) + _text(_NAME, name) + _nested(_BY_FAMILY, ipv6)
    return RouteRequest(f"link set {name} addrgenmode", _NEW_LINK, 0, body)


def set_group(name: str, group: int) -> RouteRequest:
    body = _LINK.pack(0, 0, 0, 0, 0) + _text(_NAME, name) + _attribute(_GROUP, _U32.pack(group))
    return RouteRequest(f"link set {name} group", _NEW_LINK, 0, body)


def delete_group(group: int) -> RouteRequest:
    """Delete all links of `group`, which the kernel does in the time of one."""
    body = _LINK.pack(0, 0, 0, 0, 0) + _attribute(_GROUP, _U32.pack(group))
    return RouteRequest(f"link delete group {group}", _DELETE_LINK, 0, body)


def add_address(
    link: int, address: Address, prefix: int, broadcast: IPv4Address | None = None
) -> RouteRequest:
    """IPv6 addresses are used at once: nobody else can have them."""
    body = _ADDRESS.pack(_family(address), prefix, 0, 0, link)
    body += _attribute(_LOCAL, address.packed) + _attribute(_FULL, address.packed)
    if broadcast is not None:
        body += _attribute(_BROADCAST, broadcast.packed)
    if address.version == 6:
        body += _attribute(_FLAGS, _U32.pack(_NO_DETECTION))
    return RouteRequest(f"address add {address}", _NEW_ADDRESS, _NEW, body)


def add_default_route(link: int, gateway: Address, *, is_on_link: bool = False) -> RouteRequest:
    """`is_on_link`: the gateway is there, although no address of the link says so."""
    flags = _ON_LINK if is_on_link else 0
    body = _ROUTE.pack(_family(gateway), 0, 0, 0, _MAIN_TABLE, _BOOT, 0, _UNICAST, flags)
    body += _attribute(_GATEWAY, gateway.packed) + _attribute(_LINK_OF_ROUTE, _U32.pack(link))
    return RouteRequest(f"route add default via {gateway}", _NEW_ROUTE, _NEW, body)


def replace_neighbour(link: int, address: Address, mac: str) -> RouteRequest:
    body = _NEIGHBOUR.pack(_family(address), link, _PERMANENT, 0, 0) + _attribute(
        _DESTINATION, address.packed
    )
    body += _attribute(_HARDWARE, _hardware(mac))
    return RouteRequest(f"neighbour replace {address}", _NEW_NEIGHBOUR, _CREATE | _REPLACE, body)


def delete_neighbour(link: int, address: Address) -> RouteRequest:
    body = _NEIGHBOUR.pack(_family(address), link, 0, 0, 0) + _attribute(_DESTINATION, address.packed)
    return RouteRequest(f"neighbour del {address}", _DELETE_NEIGHBOUR, 0, body)


class RouteSocket:
    """A connection to the kernel, for the network namespace of the thread that creates it."""

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        )

    def __enter__(self) -> RouteSocket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, requests: Sequence[RouteRequest], *, ignored: Collection[int] = ()) -> None:
        """Make these changes, in order. Raises Unavailable for the first that fails, unless its error number
        is `ignored`; those sent with it are made nevertheless."""
        for first in range(0, len(requests), _AT_ONCE):
            self._send(requests[first : first + _AT_ONCE], ignored)

    def _send(self, requests: Sequence[RouteRequest], ignored: Collection[int]) -> None:
        packet = b"".join(
            _HEADER.pack(_HEADER.size + len(body), kind, flags | _REQUEST | _ACKNOWLEDGE, number, 0) + body
            for number, (_, kind, flags, body) in enumerate(requests)
        )
        self._socket.sendto(packet, (0, 0))
        failures: dict[int, int] = {}
        answered = 0
        while answered < len(requests):
            for number, error in _answers(self._socket.recv(_BUFFER)):
                answered += 1
                if error and error not in ignored:
                    failures[number] = error
        if failures:
            number = min(failures)
            raise errors.Unavailable(
                f"the network of containers could not be changed; {requests[number].purpose}: "
                f"{os.strerror(failures[number])}",
                detail=errno.errorcode.get(failures[number], ""),
            )


def _answers(packet: bytes) -> list[tuple[int, int]]:
    """The number of each request that is answered, and its error."""
    found, at = [], 0
    while at < len(packet):
        length, kind, _, number, _ = _HEADER.unpack_from(packet, at)
        if kind == _ERROR:
            found.append((number, -_NUMBER.unpack_from(packet, at + _HEADER.size)[0]))
        at += length + 3 & ~3
    return found


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def _nested(kind: int, attributes: bytes) -> bytes:
    return _attribute(kind | _NESTED, attributes)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _hardware(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _family(address: Address) -> int:
    return socket.AF_INET if address.version == 4 else socket.AF_INET6
