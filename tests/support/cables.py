"""Long cables between machines: what goes in at one end comes out at the other a while later.

The kernel's own means for this (netem) is not in every kernel; here a process carries the frames between the
two links that a cable is made of. Links compute their checksums themselves and send no frames that are
larger than they may be, since nobody does that for us on the way.

    with long_cables(place, [Cable("near-edge", "far-edge", 0.005)]): ...
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_SIOCETHTOOL = 0x8946
_OFF = (
    0x17,
    0x1F,
    0x24,
    0x2C,
)  # checksums and large frames, of what is sent and of what comes
_ALL_PROTOCOLS = 0x0003
_OUTGOING = 4
_MOST = 65536


class Cable(NamedTuple):
    """Two links of one namespace, joined; a frame takes `delay_s` from one to the other."""

    one: str
    other: str
    delay_s: float


def plain(link: str) -> None:
    """Have the link of this namespace do everything itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for what in _OFF:
            value = ctypes.create_string_buffer(struct.pack("II", what, 0))
            request = struct.pack("16sQ16x", link.encode(), ctypes.addressof(value))
            with contextlib.suppress(OSError):  # what it cannot do it does not do
                fcntl.ioctl(any_socket, _SIOCETHTOOL, request)


def carry(cables: Sequence[Cable]) -> None:
    """Carry frames, for ever. For a process of its own."""
    ways: dict[int, tuple[socket.socket, socket.socket, float]] = {}
    poll = select.epoll()
    for cable in cables:
        ends = [_end(cable.one), _end(cable.other)]
        for end, far in (ends, reversed(ends)):
            ways[end.fileno()] = (end, far, cable.delay_s)
            poll.register(end, select.EPOLLIN)
    due: list[tuple[float, int, socket.socket, bytes]] = []
    number = 0
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else -1
        for descriptor, _ in poll.poll(wait):
            end, far, delay_s = ways[descriptor]
            for _ in range(64):
                try:
                    frame, address = end.recvfrom(_MOST)
                except BlockingIOError:
                    break
                if address[2] != _OUTGOING:
                    number += 1
                    heapq.heappush(due, (time.monotonic() + delay_s, number, far, frame))
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, _, far, frame = heapq.heappop(due)
            with contextlib.suppress(OSError):  # a cable that was cut
                far.send(frame)


def _end(link: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * 1024 * 1024)
    end.bind((link, 0))
    end.setblocking(False)
    return end


@contextlib.contextmanager
def long_cables(place: Path, cables: Sequence[Cable]) -> Iterator[None]:
    """Carry frames in the network namespace at `place`, until the context is left."""
    words = [f"{cable.one},{cable.other},{cable.delay_s}" for cable in cables]
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-m", "tests.support.cables", str(place), *words], os.environ
    )
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    from tests.node.network.machines import enter

    enter(sys.argv[1])
    carry([Cable(one, other, float(delay)) for one, other, delay in (w.split(",") for w in sys.argv[2:])])
