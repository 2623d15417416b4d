"""Changes elements of sets and maps of nftables by netlink, several in one transaction.

`nft` reads every table of the machine before it changes one element, which takes 8 ms of processor time with
the tables of one Skerry alone; the change itself takes the kernel 0.1 ms. Publishing a port and changing who
may connect to an address are parts of a start, so `skerry.node.network.firewall` does them by this module.
Rules and whole tables are written by `nft`.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

MOST: Final = 256  # elements in a transaction: they fit one attribute and the buffer of a socket

_NETLINK_NETFILTER: Final = 12
_ERROR: Final = 2
_REQUEST, _ACKNOWLEDGE, _CREATE = 0x1, 0x4, 0x400
_SUBSYSTEM: Final = 10  # nftables
_ADD, _DELETE = _SUBSYSTEM << 8 | 12, _SUBSYSTEM << 8 | 14
_BEGIN, _END = 0x10, 0x11  # of a transaction
_FAMILIES: Final = {"ip": socket.AF_INET, "ip6": socket.AF_INET6, "bridge": 7}
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_FAMILY: Final = struct.Struct("!BBH")  # family of the table, version, resource
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, kind
_ERROR_NUMBER: Final = struct.Struct("=i")
_NESTED: Final = 0x8000
_TABLE, _SET, _ELEMENTS = 1, 2, 3  # of a list of elements
_ELEMENT: Final = 1  # of _ELEMENTS
_KEY, _DATA = 1, 2  # of an element
_VALUE: Final = 1  # of a key, and of data
_TIMEOUT_S: Final = 5.0
_BUFFER: Final = 1 << 16
_LINK_BYTES: Final = 16  # of the name of a link


class SetElement(NamedTuple):
    """An element of a set, or with `data` of a map, as the kernel has it."""

    key: bytes
    data: bytes = b""


class ElementChange(NamedTuple):
    """Elements to remove from a set or map, by their keys, and to add to it."""

    family: str  # of the table: ip, ip6 or bridge
    name: str
    removed: tuple[bytes, ...] = ()
    added: tuple[SetElement, ...] = ()


def port_key(port: int) -> bytes:
    return struct.pack("!H", port)


def link_key(name: str) -> bytes:
    return name.encode().ljust(_LINK_BYTES, b"\0")


def port_target(address: IPv4Address | IPv6Address, port: int) -> bytes:
    """The data of a map to an address and a port."""
    # Each part of a concatenation begins at a multiple of four bytes.
    return address.packed + struct.pack("!H2x", port)


def count(changes: Sequence[ElementChange]) -> int:
    return sum(len(change.removed) + len(change.added) for change in changes)


def apply(table: str, changes: Sequence[ElementChange]) -> None:
    """Apply all changes to sets and maps of the tables called `table`, in this network namespace, or none. At
    most `MOST` elements. Blocks for a moment. Raises OSError, also for a table, set or element that does not
    exist."""
    requests = list(_requests(table, changes))
    if not requests:
        return
    last = len(requests)  # sequence number; 0 is that of the beginning
    batch = _message(_BEGIN, 0, 0, socket.AF_UNSPEC, b"", _SUBSYSTEM)
    for number, (kind, family, body) in enumerate(requests, start=1):
        flags = (_CREATE if kind == _ADD else 0) | (_ACKNOWLEDGE if number == last else 0)
        batch += _message(kind, flags, number, family, body)
    batch += _message(_END, 0, last + 1, socket.AF_UNSPEC, b"", _SUBSYSTEM)
    with socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER
    ) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.sendto(batch, (0, 0))
        while not _is_acknowledged(kernel.recv(_BUFFER), last):
            pass


def _requests(table: str, changes: Sequence[ElementChange]) -> list[tuple[int, int, bytes]]:
    """Type, family and body of each message. Removals come first: a port may be added for another address."""
    found: list[tuple[int, int, bytes]] = []
    for change in changes:
        family = _FAMILIES[change.family]
        head = _text(_TABLE, table) + _text(_SET, change.name)
        if change.removed:
            keys = b"".join(map(_element, change.removed))
            found.append((_DELETE, family, head + _nested(_ELEMENTS, keys)))
        if change.added:
            elements = b"".join(_element(*each) for each in change.added)
            found.append((_ADD, family, head + _nested(_ELEMENTS, elements)))
    return found


def _is_acknowledged(packet: bytes, last: int) -> bool:
    """True if `packet` acknowledges the message `last`. Raises OSError for one that the kernel refused."""
    at = 0
    while at + _HEADER.size <= len(packet):
        length, kind, _, number, _ = _HEADER.unpack_from(packet, at)
        if kind == _ERROR:
            (code,) = _ERROR_NUMBER.unpack_from(packet, at + _HEADER.size)
            if code:
                raise OSError(-code, os.strerror(-code))
            if number == last:
                return True
        at += _aligned(max(length, _HEADER.size))
    return False


def _message(kind: int, flags: int, number: int, family: int, body: bytes, resource: int = 0) -> bytes:
    length = _HEADER.size + _FAMILY.size + len(body)
    return (
        _HEADER.pack(length, kind, flags | _REQUEST, number, 0)
        + _FAMILY.pack(family, 0, resource)
        + body.ljust(_aligned(len(body)), b"\0")
    )


def _element(key: bytes, data: bytes = b"") -> bytes:
    body = _nested(_KEY, _attribute(_VALUE, key))
    return _nested(_ELEMENT, body + (_nested(_DATA, _attribute(_VALUE, data)) if data else b""))


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


def _nested(kind: int, body: bytes) -> bytes:
    return _attribute(kind | _NESTED, body)


def _attribute(kind: int, body: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(body), kind) + body.ljust(_aligned(len(body)), b"\0")


def _aligned(length: int) -> int:
    return length + 3 & ~3
