"""The user that owns the local end of a TCP connection, from the kernel by netlink `sock_diag`.

`skerry.transport.access.peers` uses this for callers on loopback. Every doubt gives None: no answer, an
answer about another socket, or a socket that no process holds any more. The last matters most: the kernel
reports user 0 for a socket that was closed but still lingers, and a client that disconnects must not become
root.
"""

from __future__ import annotations

import ipaddress
import itertools
import socket
import struct
from typing import Final

SocketAddress = tuple[str, int]

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_NO_COOKIE: Final = 0xFFFFFFFF
# ESTABLISHED, FIN_WAIT1, FIN_WAIT2: connected, and possibly done with sending. Not SYN_SENT: another process
# may be dialling from the very port of the connection.
_CONNECTED: Final = frozenset({1, 4, 5})
_TIMEOUT_S: Final = 0.05

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states
_SOCKET_ID = struct.Struct("!HH16s16s")  # ports and addresses, in network order
_SOCKET_TAIL = struct.Struct("=III")  # interface, cookie
_ANSWER = struct.Struct("=BBBB")  # family, state, timer, retransmits
_ANSWER_TAIL = struct.Struct("=IIIII")  # expires, receive queue, send queue, uid, inode

_sequence = itertools.count(1)


def owner_of(local: SocketAddress, remote: SocketAddress) -> int | None:
    """The uid behind the TCP socket bound to `local` and connected to `remote`, or None if in any doubt.

    For an accepted client, `local` is the client's address and `remote` is ours.
    """
    try:
        ends = (_address(local[0]), local[1]), (_address(remote[0]), remote[1])
        sequence = next(_sequence) & 0xFFFFFFFF
        # A socket of its own for each question: no answer to an earlier one can be waiting in it.
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
        ) as netlink:
            netlink.settimeout(_TIMEOUT_S)
            netlink.sendto(_question(sequence, *ends), (0, 0))
            answer, (sender, _) = netlink.recvfrom(4096)
    except (OSError, ValueError, struct.error):
        return None
    if sender != 0:  # 0 is the kernel
        return None
    return _owner_in(answer, sequence, *ends)


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_End = tuple[_Address, int]


def _address(text: str) -> _Address:
    """The address without a scope; IPv4 in IPv6 clothing becomes IPv4, which is how the kernel files it."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _question(sequence: int, local: _End, remote: _End) -> bytes:
    if local[0].version != remote[0].version:
        raise ValueError("a connection has both ends in one family")
    family = socket.AF_INET if local[0].version == 4 else socket.AF_INET6
    body = (
        _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
        + _SOCKET_ID.pack(local[1], remote[1], local[0].packed, remote[0].packed)
        + _SOCKET_TAIL.pack(0, _NO_COOKIE, _NO_COOKIE)
    )
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, sequence, 0) + body


def _owner_in(answer: bytes, sequence: int, local: _End, remote: _End) -> int | None:
    try:
        _, kind, _, answered, _ = _HEADER.unpack_from(answer)
        at = _HEADER.size
        if kind != _SOCK_DIAG_BY_FAMILY or answered != sequence:
            return None
        family, state, _, _ = _ANSWER.unpack_from(answer, at)
        at += _ANSWER.size
        local_port, remote_port, local_raw, remote_raw = _SOCKET_ID.unpack_from(answer, at)
        at += _SOCKET_ID.size + _SOCKET_TAIL.size
        _, _, _, uid, inode = _ANSWER_TAIL.unpack_from(answer, at)
    except struct.error:
        return None
    width = 4 if family == socket.AF_INET else 16
    # If no connection matches, the kernel offers a listener on the port instead; the echo gives that away.
    echoed = (_plain(local_raw[:width]), local_port), (_plain(remote_raw[:width]), remote_port)
    if echoed != (local, remote) or state not in _CONNECTED or inode == 0:
        return None
    return int(uid)


def _plain(packed: bytes) -> _Address:
    return _address(str(ipaddress.ip_address(packed)))
