"""The peer of a connection, as the transport and the kernel know it.

`skerry.transport.listeners` reads it once, when a connection is accepted, and the servers add its
certificate; `skerry.transport.access.gate` turns the result into a caller. Nothing here decides about access,
and nothing that the client sends is trusted: addresses, users and certificates come from the kernel and from
TLS.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct

import msgspec

from skerry.kit import namespace_marker, socket_owner

_UCRED = struct.Struct("=iII")  # pid, uid, gid
_NOBODY = 0xFFFFFFFF  # the kernel's value for unknown
_ROOT_UID = 0


class ConnectionPeer(msgspec.Struct, frozen=True):
    """The other end. `uid` is known only for a process of this machine."""

    address: str
    loopback: bool = False
    uid: int | None = None
    certificate: bytes | None = None  # DER, as TLS has verified it


def with_certificate(peer: ConnectionPeer, transport: asyncio.BaseTransport) -> ConnectionPeer:
    """`peer` with what it has shown in TLS."""
    certificate = _certificate(transport)
    return peer if certificate is None else msgspec.structs.replace(peer, certificate=certificate)


def peer_of(sock: socket.socket) -> ConnectionPeer:
    """The peer of an accepted TCP or unix socket; one that has disconnected already has no address."""
    try:
        if sock.family == socket.AF_UNIX:
            # Only a process of this machine can hold the other end.
            return ConnectionPeer(address="unix", loopback=True, uid=_unix_uid(sock))
        theirs, ours = sock.getpeername(), sock.getsockname()
    except OSError:
        return ConnectionPeer(address="")
    # Asked for every address: a process of this machine may call from any that the machine has.
    return ConnectionPeer(
        address=theirs[0],
        loopback=is_loopback(theirs[0]),
        uid=_of_machine(socket_owner.owner_of(theirs[:2], ours[:2])),
    )


def trusted_uids(own_uid: int) -> frozenset[int]:
    """The users of this machine that are trusted like the server's own."""
    return frozenset({own_uid, _ROOT_UID})


def is_loopback(host: str) -> bool:
    """True for a literal loopback address, also as IPv4 inside IPv6; names are not resolved."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _unix_uid(sock: socket.socket) -> int | None:
    try:
        _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    except OSError:
        return None
    return None if uid == _NOBODY else _of_machine(uid)


def _of_machine(uid: int | None) -> int | None:
    return None if uid is None else namespace_marker.machine_uid(uid)


def _certificate(transport: asyncio.BaseTransport) -> bytes | None:
    ssl_object = transport.get_extra_info("ssl_object")
    # Without a request for a certificate there is none; with one, TLS has verified it before.
    return ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None
