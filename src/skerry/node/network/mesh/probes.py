"""Probes of links: ICMPv6 echo requests to the probe addresses of peers, which their kernels answer.

So a link stays up while the agent of its other end is away.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv6Address
from typing import Final

import structlog

from skerry.kit.clock import Clock
from skerry.model.ids import NodeId
from skerry.model.mesh import probe_address
from skerry.node.network.bridge_namespace import BridgeNamespace

log = structlog.get_logger(__name__)

_REQUEST, _REPLY = 128, 129
_ICMP6_FILTER: Final = 1
_SO_BINDTODEVICE: Final = 25
_HEADER: Final = struct.Struct("!BBHHH")  # type, code, checksum (the kernel's), identifier, sequence
_MOST: Final = 256  # answers in one go


class LinkProbes:
    """Sends probes on one interface."""

    def __init__(
        self, clock: Clock, answered: Callable[[NodeId, float], None], namespace: BridgeNamespace
    ) -> None:
        """`answered` is called with the round trip in seconds; the interface is in `namespace`."""
        self._clock = clock
        self._answered = answered
        self._namespace = namespace
        self._socket: socket.socket | None = None
        self._identifier = int.from_bytes(os.urandom(2), "big")
        self._sequence = 0
        self._sent: dict[str, tuple[NodeId, int, float]] = {}  # the last to each address

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def open(self, interface: str) -> bool:
        """Begin to listen; false where there is no IPv6."""
        self.close()
        try:
            made = self._namespace.open_socket(
                socket.AF_INET6, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.IPPROTO_ICMPV6
            )
        except OSError as error:
            log.warning("mesh.no_probes", error=str(error))
            return False
        try:
            made.setsockopt(socket.SOL_SOCKET, _SO_BINDTODEVICE, interface.encode() + b"\0")
            # A bit for each type, set: it is not delivered.
            blocked = bytearray(b"\xff" * 32)
            word = _REPLY >> 5
            bits = 0xFFFFFFFF & ~(1 << (_REPLY & 31))
            blocked[word * 4 : word * 4 + 4] = struct.pack("=I", bits)
            made.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, bytes(blocked))
            asyncio.get_running_loop().add_reader(made, self._receive)
        except OSError as error:
            made.close()
            log.warning("mesh.no_probes", error=str(error))
            return False
        self._socket = made
        return True

    def close(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        self._sent.clear()

    def send(self, node: NodeId) -> None:
        """One probe; an error of the link is as if it was lost."""
        if self._socket is None:
            return
        self._sequence = self._sequence + 1 & 0xFFFF
        address = str(probe_address(node))
        self._sent[address] = node, self._sequence, self._clock.monotonic()
        try:
            self._socket.sendto(
                _HEADER.pack(_REQUEST, 0, 0, self._identifier, self._sequence), (address, 0, 0, 0)
            )
        except OSError:
            return

    def forget(self, node: NodeId) -> None:
        self._sent.pop(str(probe_address(node)), None)

    def _receive(self) -> None:
        assert self._socket is not None
        for _ in range(_MOST):
            try:
                data, source = self._socket.recvfrom(512)
            except BlockingIOError:
                return
            except OSError:
                return  # the interface is gone; it is made again, and we are opened again
            if len(data) < _HEADER.size:
                continue
            kind, _, _, identifier, sequence = _HEADER.unpack_from(data)
            sent = self._sent.get(str(IPv6Address(source[0].partition("%")[0])))
            if kind == _REPLY and identifier == self._identifier and sent is not None and sent[1] == sequence:
                self._answered(sent[0], self._clock.monotonic() - sent[2])
