"""Sends lines to a syslog server, by datagrams or over a connection.

Syslog has no acknowledgements. Over a connection, lines count as sent when the kernel of the other machine
has acknowledged all of them; those that it had not when the connection broke are sent again. Datagrams
count as sent when they have left.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import socket
import ssl
import struct
import termios
from collections.abc import Sequence
from typing import Final

from skerry.transport.log_forwarding import formats
from skerry.transport.log_forwarding.batches import ForwardedLine, NodeLabels, TargetUnavailable
from skerry.transport.log_forwarding.targets import SyslogTarget, SyslogTransport

_CONNECT_S: Final = 10.0
_SEND_S: Final = 30.0  # a batch of datagrams
_STALLED_S: Final = 30.0  # a connection on which nothing moves
_POLL_S: Final = 0.02
_MAX_DATAGRAM: Final = 32 * 1024


class DatagramSender:
    """UDP, or the unix socket of the local syslog."""

    def __init__(self, target: SyslogTarget, labels: NodeLabels) -> None:
        self._target = target
        self._labels = labels
        self._socket: socket.socket | None = None

    async def send(self, lines: Sequence[ForwardedLine]) -> None:
        try:
            async with asyncio.timeout(_SEND_S):
                if self._socket is None:
                    self._socket = await self._connect()
                for line in lines:
                    await self._send_one(self._socket, self._message(line))
        except (OSError, TimeoutError) as error:
            await self.close()
            raise TargetUnavailable(_reason(self._target, error)) from error

    async def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _message(self, line: ForwardedLine) -> bytes:
        if self._target.transport is SyslogTransport.UNIX:
            return formats.local_message(line)[:_MAX_DATAGRAM]
        return formats.syslog_message(line, self._labels)[:_MAX_DATAGRAM]

    async def _connect(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        if self._target.transport is SyslogTransport.UNIX:
            family, address = socket.AF_UNIX, self._target.path
        else:
            found = await loop.getaddrinfo(self._target.host, self._target.port, type=socket.SOCK_DGRAM)
            family, address = found[0][0], found[0][4]  # type: ignore[assignment]
        made = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            made.connect(address)
        except BaseException:
            made.close()
            raise
        return made

    async def _send_one(self, to: socket.socket, message: bytes) -> None:
        while True:
            try:
                to.send(message)
                return
            except BlockingIOError:
                await asyncio.sleep(_POLL_S)  # the receiver's queue is full
            except OSError as error:
                if error.errno == errno.EMSGSIZE and len(message) > 1024:
                    message = message[: len(message) // 2]  # the network takes no more at once
                    continue
                if error.errno != errno.ENOBUFS:
                    raise
                await asyncio.sleep(_POLL_S)


class StreamSender:
    """TCP, with or without TLS."""

    def __init__(self, target: SyslogTarget, labels: NodeLabels) -> None:
        self._target = target
        self._labels = labels
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, lines: Sequence[ForwardedLine]) -> None:
        data = b"".join(formats.octet_counted(formats.syslog_message(line, self._labels)) for line in lines)
        try:
            reader, writer = await self._connected()
            writer.write(data)
            await _acknowledged(reader, writer)
        except (OSError, TimeoutError, ssl.SSLError) as error:
            await self.close()
            raise TargetUnavailable(_reason(self._target, error)) from error
        except BaseException:
            await self.close()  # a part of a message may have been sent
            raise

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and self._streams[0].at_eof():
            await self.close()  # the server closed it meanwhile
        if self._streams is None:
            async with asyncio.timeout(_CONNECT_S):
                self._streams = await asyncio.open_connection(
                    self._target.host, self._target.port, ssl=self._tls(), limit=4096
                )
        return self._streams

    def _tls(self) -> ssl.SSLContext | None:
        if self._target.transport is not SyslogTransport.TLS:
            return None
        return ssl.create_default_context(cafile=self._target.ca or None)


async def _acknowledged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Wait until the other machine has received everything, however slow it is. Raises TimeoutError if it
    receives nothing for a while."""
    transport, now = writer.transport, asyncio.get_running_loop().time
    file = transport.get_extra_info("socket").fileno()
    least, moved_at = -1, now()
    while left := transport.get_write_buffer_size() + _unacknowledged(file):
        if reader.at_eof() or transport.is_closing():
            raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
        if least < 0 or left < least:
            least, moved_at = left, now()
        elif now() - moved_at > _STALLED_S:
            raise TimeoutError("it receives nothing")
        await asyncio.sleep(_POLL_S)


def _unacknowledged(file: int) -> int:
    """Bytes that the kernel has sent or will send, and that are not acknowledged (SIOCOUTQ)."""
    count: int = struct.unpack("i", fcntl.ioctl(file, termios.TIOCOUTQ, b"\0\0\0\0"))[0]
    return count


def _reason(target: SyslogTarget, error: BaseException) -> str:
    where = target.path or f"{target.host}:{target.port}"
    return f"{where}: {error or 'it does not answer'}"
