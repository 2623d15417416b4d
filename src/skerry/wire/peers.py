"""Who is at the other end of a connection, as far as the transport and the kernel can tell.

The servers call `peer_of` once, when a connection is made; `skerry.wire.gate` turns the result into a caller.
Nothing here decides what anybody may do, and nothing the client sends is believed: addresses, users and
certificates come from the kernel and from TLS.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from typing import Any

import msgspec

from skerry.kit import sockdiag

_UCRED = struct.Struct("=iII")  # pid, uid, gid
_NOBODY = 0xFFFFFFFF  # what the kernel says when it does not know


class Peer(msgspec.Struct, frozen=True):
    """The other end. `uid` is known only for a process of this machine."""

    address: str
    loopback: bool = False
    uid: int | None = None
    certificate: bytes | None = None  # DER, as TLS has verified it


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """The peer of a connected TCP, TLS or unix transport; one that is already gone shows nothing."""
    sock: Any = transport.get_extra_info("socket")
    if sock is None:
        return Peer(address="")
    if sock.family == socket.AF_UNIX:
        # Only a process of this machine can hold the other end.
        return Peer(address="unix", loopback=True, uid=_unix_uid(sock), certificate=_certificate(transport))
    theirs, ours = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if not theirs or not ours:
        return Peer(address="")
    loopback = is_loopback(theirs[0])
    return Peer(
        address=theirs[0],
        loopback=loopback,
        uid=sockdiag.owner_of(theirs[:2], ours[:2]) if loopback else None,
        certificate=_certificate(transport),
    )


def is_loopback(host: str) -> bool:
    """True for a literal loopback address, also as IPv4 inside IPv6; names are not resolved."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _unix_uid(sock: Any) -> int | None:
    try:
        _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    except OSError:
        return None
    return None if uid == _NOBODY else uid


def _certificate(transport: asyncio.BaseTransport) -> bytes | None:
    ssl_object = transport.get_extra_info("ssl_object")
    # A server that asks for no certificate gets none; one that asks has it checked before this is reached.
    return ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None
