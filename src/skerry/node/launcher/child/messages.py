"""Messages between the agent, the launcher and the inits: JSON in packets, with descriptors.

One packet is one message. A request has an `id` that its reply repeats; a reply without a waiter, perhaps for
an agent that is dead, is recognised by that. Both ends are ours: a malformed message is a bug and no attack,
but it must neither stall an end nor leak a descriptor.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from typing import Any, Final, NamedTuple

MAX_BYTES: Final = 160 * 1024
MAX_DESCRIPTORS: Final = 32

# In an init: the agent's end of its control socket, kept for a later agent, and its own end.
AGENT_END: Final = 3
OWN_END: Final = 4
INIT_NAME: Final = b"skerry-init"  # in `ps`
# That of an init whose program has not begun: as the kernel calls a file in memory, or what is open with that
# number (`worker_cells`).
UNNAMED_INITS: Final = (b"memfd:skerry-in", b"9")
OUTPUT_NAME: Final = b"skerry-output"
LAUNCHER_NAME: Final = b"skerry-launcher"
WORKER_NAME: Final = b"skerry-worker"

_CREDENTIALS = struct.Struct("=iII")  # pid, uid, gid
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4) + socket.CMSG_SPACE(_CREDENTIALS.size)

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

MessageBody = dict[str, Any]


class MessageTooLarge(ValueError):
    """The message does not fit into a packet."""


class MalformedMessage(ValueError):
    """A packet that is not a message."""


class LauncherMessage(NamedTuple):
    """One received message; its descriptors belong to the receiver."""

    body: MessageBody
    descriptors: list[int]
    process: int  # the pid that the sender passed, translated to the receiver's namespace; 0 if it cannot be

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected non-blocking ends; the first receives the pids of messages."""
    ends = socket.socketpair(
        socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    )
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_BYTES)
    ends[0].setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ends


def encode(body: MessageBody) -> bytes:
    packet = _encoder.encode(body).encode("utf-8", "surrogateescape")
    if len(packet) > MAX_BYTES:
        raise MessageTooLarge(f"{len(packet)} bytes are more than the limit of {MAX_BYTES} for a message")
    return packet


def send(end: socket.socket, packet: bytes, descriptors: list[int] | None = None, process: int = 0) -> None:
    """Send at once or raise BlockingIOError. `process` is a pid of the sender's namespace: the kernel
    translates it for the receiver, also if the process is gone by then."""
    ancillary: list[tuple[int, int, Any]] = []
    if descriptors:
        ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors)))
    if process:
        about = _CREDENTIALS.pack(process, os.getuid(), os.getgid())
        ancillary.append((socket.SOL_SOCKET, socket.SCM_CREDENTIALS, about))
    end.sendmsg([packet], ancillary)


def receive(end: socket.socket) -> LauncherMessage | None:
    """The next message, or None if the other end is gone; BlockingIOError if there is none yet."""
    packet, ancillary, flags, _ = end.recvmsg(MAX_BYTES + 1, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    process = 0
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
            descriptors += numbers
        elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            process = _CREDENTIALS.unpack(content)[0]
    if not packet and not descriptors:
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise MalformedMessage("a message was truncated")
        body = json.loads(packet.decode("utf-8", "surrogateescape"))
        if not isinstance(body, dict):
            raise MalformedMessage("a message that is not an object")
    except ValueError as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise MalformedMessage(str(error)) from error
    return LauncherMessage(body, descriptors, process)
