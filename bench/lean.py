"""A gRPC client that costs next to nothing, so that what is measured is the server.

Unary calls over one connection, one after the other. Requests are HTTP/2 frames put together by hand, with
headers that need no state; of an answer only the frames' own headers are read while the clock runs, and
whether it was a success is found out afterwards. Not for anything else: it has no flow control and trusts its
server.
"""

from __future__ import annotations

import socket
import ssl
import struct

from hpack import Decoder

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_NO_TABLE = struct.pack("!HI", 1, 0)  # the server shall remember no headers, and so do we
_LARGE_WINDOW = 2**30


class LeanClient:
    """One connection to a gRPC server on a unix socket, over TLS."""

    def __init__(self, path: str, tls: ssl.SSLContext, server_name: str) -> None:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        plain.connect(path)
        self._socket = tls.wrap_socket(plain, server_hostname=server_name)
        assert self._socket.selected_alpn_protocol() == "h2"
        self._unread = b""
        self._stream = -1
        self._authority = server_name
        self._answers: list[bytes] = []  # headers of answers, not looked at yet
        window = struct.pack("!I", _LARGE_WINDOW)
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, _NO_TABLE) + _frame(_WINDOW, 0, 0, window))

    def call(self, path: str, message: bytes) -> bytes:
        """Send a request and give the reply's message."""
        self._stream += 2
        request = _frame(_HEADERS, _END_HEADERS, self._stream, self._headers(path)) + _frame(
            _DATA, _END_STREAM, self._stream, struct.pack("!BI", 0, len(message)) + message
        )
        self._socket.sendall(request)
        reply = b""
        while True:
            kind, flags, stream, payload = self._read_frame()
            if kind == _SETTINGS and not flags & _ACK:
                self._socket.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                self._socket.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _GOAWAY:
                raise ConnectionError(f"the server says goodbye: {payload!r}")
            elif stream == self._stream and kind == _DATA:
                reply += payload
            elif stream == self._stream and kind == _HEADERS:
                self._answers.append(payload)
            if stream == self._stream and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                return reply[5:]

    def check(self) -> None:
        """Raise unless every call since the last check was a success."""
        decoder = Decoder()
        fields = [field for block in self._answers for field in decoder.decode(block, raw=True)]
        self._answers.clear()
        for name, value in fields:
            if name == b"grpc-status" and value != b"0":
                raise RuntimeError(f"a call failed: {fields}")

    def close(self) -> None:
        self._socket.close()

    def _headers(self, path: str) -> bytes:
        fields = (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", self._authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        )
        return b"".join(_field(name, value) for name, value in fields)

    def _read_frame(self) -> tuple[int, int, int, bytes]:
        while len(self._unread) < 9 or len(self._unread) < 9 + int.from_bytes(self._unread[:3], "big"):
            more = self._socket.recv(65536)
            if not more:
                raise ConnectionError("the server closed the connection")
            self._unread += more
        length = int.from_bytes(self._unread[:3], "big")
        kind, flags, stream = struct.unpack("!BBI", self._unread[3:9])
        payload, self._unread = self._unread[9 : 9 + length], self._unread[9 + length :]
        return kind, flags, stream, payload


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack("!BBI", kind, flags, stream) + payload


def _field(name: str, value: str) -> bytes:
    """A header that is not to be remembered, with name and value spelt out."""
    return b"\x00" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
