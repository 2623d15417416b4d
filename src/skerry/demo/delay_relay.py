"""A link that takes time: a process that holds every frame between two network links for a while.

For kernels without netem. It runs in the network namespace of both links:

    python -m skerry.demo.delay_relay near,far,0.005 ...

Such links must compute their checksums themselves and send no frames above their MTU (`disable_offloads`),
because a frame is passed on as it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

_SIOCETHTOOL: Final = 0x8946
# Checksums, TSO, GSO and GRO; see <linux/ethtool.h>.
_OFFLOADS: Final = (0x17, 0x1F, 0x24, 0x2C)
_ALL_PROTOCOLS: Final = 0x0003
_OUTGOING: Final = 4  # PACKET_OUTGOING: what this machine itself sends on the link
_MAX_FRAME: Final = 65536
_BATCH: Final = 64
_BUFFER: Final = 8 * 1024 * 1024


class DelayedLink(NamedTuple):
    """Two links of one namespace that are connected; a frame takes `delay_s` from one to the other."""

    one: str
    other: str
    delay_s: float


def disable_offloads(link: str) -> None:
    """Have a link of this namespace compute checksums itself and send only frames within its MTU."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for offload in _OFFLOADS:
            value = ctypes.create_string_buffer(struct.pack("II", offload, 0))
            request = struct.pack("16sQ16x", link.encode(), ctypes.addressof(value))
            with contextlib.suppress(OSError):  # an offload that the link does not have
                fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def relay(links: Sequence[DelayedLink]) -> None:
    """Pass frames on, for ever."""
    directions: dict[int, tuple[socket.socket, socket.socket, float]] = {}
    poll = select.epoll()
    for link in links:
        ends = [_open(link.one), _open(link.other)]
        for end, far in (ends, reversed(ends)):
            directions[end.fileno()] = (end, far, link.delay_s)
            poll.register(end, select.EPOLLIN)
    due: list[tuple[float, int, socket.socket, bytes]] = []
    number = 0
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else -1
        for descriptor, _ in poll.poll(wait):
            end, far, delay_s = directions[descriptor]
            for _ in range(_BATCH):
                try:
                    frame, address = end.recvfrom(_MAX_FRAME)
                except OSError:  # there is no more, or the link is gone
                    break
                if address[2] != _OUTGOING:
                    number += 1
                    heapq.heappush(due, (time.monotonic() + delay_s, number, far, frame))
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, _, far, frame = heapq.heappop(due)
            with contextlib.suppress(OSError):  # the link is down or gone
                far.send(frame)


def parse(words: Sequence[str]) -> list[DelayedLink]:
    """Links from words such as `near,far,0.005`."""
    return [
        DelayedLink(one, other, float(delay)) for one, other, delay in (word.split(",") for word in words)
    ]


def as_word(link: DelayedLink) -> str:
    return f"{link.one},{link.other},{link.delay_s}"


def _open(link: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    end.bind((link, 0))
    end.setblocking(False)
    return end


if __name__ == "__main__":
    relay(parse(sys.argv[1:]))
