"""Removes tracked flows, so that their next packet follows the current rules.

The kernel decides once per UDP flow where it goes, and every datagram extends that decision. A sender that
never pauses would reach a container that is gone, or miss a new one. So when a UDP port is published or
withdrawn, `skerry.node.network.firewall` removes its flows, by netlink; only those to an address of this
machine or to a container; `skerry.node.network.service_balancer` removes those of virtual addresses to copies
that are gone. TCP connections end by themselves, but for those that were never answered: a client repeats its
first packet for minutes, and the kernel would send it to the same copy each time. The balancer removes these
flows too, so that the next try reaches another copy.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Sequence, Set
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Final

import structlog

from skerry.kit.networks import Network
from skerry.model.ipv6_addresses import ipv6_network_of, ipv6_of

log = structlog.get_logger(__name__)

Address = IPv4Address | IPv6Address

_NETLINK_NETFILTER: Final = 12
_GET, _DELETE = 0x0101, 0x0102  # of conntrack
_ERROR, _DONE = 2, 3
_REQUEST, _ACKNOWLEDGE, _DUMP = 0x1, 0x4, 0x300
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_FAMILY = struct.Struct("!BBH")  # family of addresses, version, resource
_ATTRIBUTE = struct.Struct("=HH")  # length, kind
_KIND: Final = 0x3FFF  # without the flags
_ORIGINAL, _REPLY, _STATUS, _ZONE, _STATUS_MASK = 1, 2, 3, 18, 26  # of a flow
_IS_ANSWERED: Final = 0x2  # in its status
_IP, _PROTOCOL = 1, 2  # of a tuple
_SOURCE, _DESTINATION, _SOURCE6, _DESTINATION6 = 1, 2, 3, 4  # of its addresses
_NUMBER, _DESTINATION_PORT = 1, 3  # of its protocol
_FILTER, _ORIGINAL_FLAGS, _BY_DESTINATION, _BY_PROTOCOL = 25, 1, 0x2, 0x8  # of a dump
_BUFFER: Final = 1 << 18
_TIMEOUT_S: Final = 5.0


def forget_udp(ports: Set[int], subnets: Sequence[IPv4Network], *, has_ipv6: bool = False) -> None:
    """Remove UDP flows to `ports` of this machine. Failures are logged: the rules hold in any case."""
    ranges: list[Network] = [*subnets, *(map(ipv6_network_of, subnets) if has_ipv6 else ())]
    for family in _families(has_ipv6=has_ipv6):
        _forget(lambda flow: _is_stale(flow, ports, ranges), family, ports=sorted(ports))


def forget_udp_of_services(closed: Set[tuple[IPv4Address, IPv4Address]], *, has_ipv6: bool = False) -> None:
    """Remove UDP flows to virtual addresses that go to these copies of them."""
    pairs = _pairs(closed, has_ipv6=has_ipv6)
    for family, virtual in _virtual_addresses(pairs):
        _forget(
            lambda flow: _ends(flow, socket.IPPROTO_UDP) in pairs,
            family,
            _flows_to(virtual, socket.IPPROTO_UDP),
            copies=len(closed),
        )


def forget_unanswered_of_services(
    closed: Set[tuple[IPv4Address, IPv4Address]], *, has_ipv6: bool = False
) -> None:
    """Remove TCP connections to virtual addresses that these copies of them have not answered."""
    pairs = _pairs(closed, has_ipv6=has_ipv6)
    for family, virtual in _virtual_addresses(pairs):
        _forget(
            lambda flow: _ends(flow, socket.IPPROTO_TCP) in pairs and not _is_answered(flow),
            family,
            _flows_to(virtual, socket.IPPROTO_TCP) + _UNANSWERED,
            copies=len(closed),
        )


def forget_udp_elsewhere(
    ranges: Sequence[IPv4Network],
    copies: Set[tuple[IPv4Address, IPv4Address]],
    *,
    has_ipv6: bool = False,
) -> None:
    """Remove UDP flows to virtual addresses in `ranges` that go to no copy of theirs."""
    pairs = _pairs(copies, has_ipv6=has_ipv6)
    virtual: list[Network] = [*ranges, *(map(ipv6_network_of, ranges) if has_ipv6 else ())]

    def is_stale(flow: bytes) -> bool:
        ends = _ends(flow, socket.IPPROTO_UDP)
        return ends is not None and ends not in pairs and any(ends[0] in each for each in virtual)

    for family in _families(has_ipv6=has_ipv6):
        _forget(is_stale, family, _flows_to(None, socket.IPPROTO_UDP), ranges=[str(each) for each in ranges])


def _families(*, has_ipv6: bool) -> list[socket.AddressFamily]:
    return [socket.AF_INET, *((socket.AF_INET6,) if has_ipv6 else ())]


def _pairs(of_ipv4: Set[tuple[IPv4Address, IPv4Address]], *, has_ipv6: bool) -> Set[tuple[Address, Address]]:
    pairs: set[tuple[Address, Address]] = set(of_ipv4)
    if has_ipv6:
        pairs |= {(ipv6_of(one), ipv6_of(other)) for one, other in of_ipv4}
    return pairs


def _virtual_addresses(
    pairs: Set[tuple[Address, Address]],
) -> Iterator[tuple[socket.AddressFamily, Address | None]]:
    """Those of each family to ask the kernel for: one, or all of them at once, since it goes through all of
    its flows for each question."""
    for version, family in ((4, socket.AF_INET), (6, socket.AF_INET6)):
        found = {virtual for virtual, _ in pairs if virtual.version == version}
        if found:
            yield family, next(iter(found)) if len(found) == 1 else None


def _forget(
    is_stale: Callable[[bytes], bool], family: socket.AddressFamily, only: bytes = b"", **context: object
) -> None:
    """Remove flows that are stale. `only` has the kernel leave out others, of which there may be very many;
    older kernels ignore it."""
    try:
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER
        ) as kernel:
            kernel.settimeout(_TIMEOUT_S)
            stale = [flow for flow in _flows(kernel, family, only) if is_stale(flow)]
            for flow in stale:
                _send_request(kernel, family, _DELETE, _REQUEST | _ACKNOWLEDGE, _identity(flow))
                with contextlib.suppress(FileNotFoundError):  # it has expired
                    list(_read_replies(kernel))
    except OSError as error:
        log.warning("network.flows_not_forgotten", error=str(error), **context)


def _flows(kernel: socket.socket, family: socket.AddressFamily, only: bytes) -> Iterator[bytes]:
    """Every tracked flow of a family, as attributes."""
    _send_request(kernel, family, _GET, _REQUEST | _DUMP, only)
    return _read_replies(kernel)


def _send_request(
    kernel: socket.socket, family: socket.AddressFamily, kind: int, flags: int, body: bytes
) -> None:
    length = _HEADER.size + _FAMILY.size + len(body)
    kernel.sendto(_HEADER.pack(length, kind, flags, 0, 0) + _FAMILY.pack(family, 0, 0) + body, (0, 0))


def _read_replies(kernel: socket.socket) -> Iterator[bytes]:
    """Replies up to the end mark; raises the kernel's error."""
    while True:
        packet = kernel.recv(_BUFFER)
        while len(packet) >= _HEADER.size:
            length, kind, _, _, _ = _HEADER.unpack_from(packet)
            body, packet = packet[_HEADER.size : length], packet[-(-length // 4) * 4 :]
            if kind == _DONE:
                return
            if kind == _ERROR:
                (number,) = struct.unpack_from("=i", body)
                if number == 0:
                    return
                raise OSError(-number, "conntrack refuses")
            yield body[_FAMILY.size :]


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _KIND] = data[_ATTRIBUTE.size : length]
        data = data[-(-length // 4) * 4 :]
    return found


def _write_attribute(kind: int, data: bytes, *, nested: bool) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), kind | (0x8000 if nested else 0)) + data.ljust(
        -(-len(data) // 4) * 4, b"\0"
    )


def _flows_to(address: Address | None, protocol: int) -> bytes:
    """A filter of the kernel: flows to `address`, or all."""
    by, to = _BY_PROTOCOL, b""
    if address is not None:
        by |= _BY_DESTINATION
        kind = _DESTINATION if address.version == 4 else _DESTINATION6
        to = _write_attribute(_IP, _write_attribute(kind, address.packed, nested=False), nested=True)
    number = _write_attribute(_NUMBER, bytes([protocol]), nested=False)
    flags = _write_attribute(_ORIGINAL_FLAGS, struct.pack("=I", by), nested=False)
    return _write_attribute(
        _ORIGINAL, to + _write_attribute(_PROTOCOL, number, nested=True), nested=True
    ) + _write_attribute(_FILTER, flags, nested=True)


# A filter, beside another one.
_UNANSWERED: Final = _write_attribute(_STATUS, bytes(4), nested=False) + _write_attribute(
    _STATUS_MASK, struct.pack("!I", _IS_ANSWERED), nested=False
)


def _identity(flow: bytes) -> bytes:
    """The attributes that identify a flow."""
    parts = _attributes(flow)
    zone = _write_attribute(_ZONE, parts[_ZONE], nested=False) if _ZONE in parts else b""
    return _write_attribute(_ORIGINAL, parts[_ORIGINAL], nested=True) + zone


def _is_stale(flow: bytes, ports: Set[int], ranges: Sequence[Network]) -> bool:
    parts = _attributes(flow)
    there, back = _attributes(parts.get(_ORIGINAL, b"")), _attributes(parts.get(_REPLY, b""))
    protocol = _attributes(there.get(_PROTOCOL, b""))
    if protocol.get(_NUMBER) != bytes([socket.IPPROTO_UDP]):
        return False
    if int.from_bytes(protocol.get(_DESTINATION_PORT, b""), "big") not in ports:
        return False
    replier = _address(back, _SOURCE, _SOURCE6)
    return any(replier in each for each in ranges) or _is_local(_address(there, _DESTINATION, _DESTINATION6))


def _ends(flow: bytes, of_protocol: int) -> tuple[Address, Address] | None:
    """The address that a flow was sent to, and the one that replies; None: it is of another protocol."""
    parts = _attributes(flow)
    there, back = _attributes(parts.get(_ORIGINAL, b"")), _attributes(parts.get(_REPLY, b""))
    if _attributes(there.get(_PROTOCOL, b"")).get(_NUMBER) != bytes([of_protocol]):
        return None
    return _address(there, _DESTINATION, _DESTINATION6), _address(back, _SOURCE, _SOURCE6)


def _is_answered(flow: bytes) -> bool:
    return bool(int.from_bytes(_attributes(flow).get(_STATUS, b""), "big") & _IS_ANSWERED)


def _address(direction: dict[int, bytes], kind: int, kind6: int) -> Address:
    found = _attributes(direction.get(_IP, b""))
    return IPv6Address(found[kind6]) if kind6 in found else IPv4Address(found[kind])


def _is_local(address: Address) -> bool:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
        return True
