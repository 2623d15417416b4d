"""Receivers of forwarded logs that accept nothing but what the standards say."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_HEADER = re.compile(
    rb"<(0|[1-9]\d{0,2})>1 "
    rb"(-|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)) "
    rb"(-|[!-~]{1,255}) (-|[!-~]{1,48}) (-|[!-~]{1,128}) (-|[!-~]{1,32}) "
)
_NAME = rb"[!#-<>-\\^-~]{1,32}"  # printable, without = ] and "
_ELEMENT = re.compile(rb"\[(" + _NAME + rb")((?: " + _NAME + rb'="(?:[^"\\\]]|\\["\\\]])*")*)\]')
_PARAMETER = re.compile(rb" (" + _NAME + rb')="((?:[^"\\\]]|\\["\\\]])*)"')
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


class SyslogMessage(NamedTuple):
    facility: int
    severity: int
    time: str
    host: str
    app: str
    id: str
    data: dict[str, str]
    text: str


def parse_rfc5424(message: bytes) -> SyslogMessage:
    """The parts of a message; AssertionError if it is none."""
    head = _HEADER.match(message)
    assert head, message
    priority = int(head[1])
    assert priority <= 191
    element = _ELEMENT.match(message, head.end())
    assert element, message[head.end() :]
    rest = message[element.end() :]
    assert rest == b"" or rest[:1] == b" ", rest
    pairs = _PARAMETER.findall(element[2])
    data = {name.decode(): re.sub(rb"\\(.)", rb"\1", value).decode() for name, value in pairs}
    assert len(data) == len(pairs)
    text = [head[part].decode() for part in (2, 3, 4, 6)]
    return SyslogMessage(priority // 8, priority % 8, *text, data, rest[1:].decode())


Push = list[tuple[dict[str, str], list[tuple[int, str]]]]


def check_loki_push(body: bytes) -> Push:
    """The streams of a push; AssertionError if Loki would not take it."""
    document = json.loads(body)
    assert list(document) == ["streams"]
    found: Push = []
    for stream in document["streams"]:
        assert sorted(stream) == ["stream", "values"]
        labels = stream["stream"]
        assert 0 < len(labels) <= 15  # Loki's default limit
        for name, value in labels.items():
            assert _LABEL.fullmatch(name), name
            assert isinstance(value, str)
            assert 0 < len(value) <= 2048
        values = []
        for entry in stream["values"]:
            assert len(entry) == 2
            assert isinstance(entry[0], str), "times are text: numbers of JSON lose nanoseconds"
            assert re.fullmatch(r"\d{19}", entry[0])
            assert isinstance(entry[1], str)
            values.append((int(entry[0]), entry[1]))
        assert values
        assert values == sorted(values, key=lambda each: each[0]), "out of order"
        found.append((labels, values))
    assert len({json.dumps(labels, sort_keys=True) for labels, _ in found}) == len(found)
    return found


class LokiReceiver:
    """A server with Loki's push API: strict, and with an order of times per stream across pushes."""

    def __init__(self, port: int = 0) -> None:
        self.lines: list[tuple[dict[str, str], int, str]] = []
        self.problems: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.statuses: list[int] = []  # answered first, one each
        self._latest: dict[str, int] = {}
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver._take(self.path, dict(self.headers), body)
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_GET(self) -> None:  # where a redirect leads to
                receiver.problems.append(f"GET {self.path}")
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def _take(self, path: str, headers: dict[str, str], body: bytes) -> int:
        self.headers.append(headers)
        if self.statuses:
            return self.statuses.pop(0)
        try:
            assert path == "/loki/api/v1/push"
            assert headers["Content-Type"] == "application/json"
            for labels, values in check_loki_push(body):
                key = json.dumps(labels, sort_keys=True)
                for time_ns, text in values:
                    assert time_ns >= self._latest.get(key, 0), "out of order"
                    self._latest[key] = time_ns
                    self.lines.append((labels, time_ns, text))
        except AssertionError as problem:
            self.problems.append(repr(problem))
            return 400
        return 204

    def texts(self, **labels: str) -> list[str]:
        return [text for found, _, text in self.lines if labels.items() <= found.items()]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextlib.contextmanager
def loki_receiver(port: int = 0) -> Iterator[LokiReceiver]:
    receiver = LokiReceiver(port)
    try:
        yield receiver
    finally:
        receiver.close()


class SyslogReceiver:
    """Takes messages of RFC 5424: by UDP, or by TCP with octet counting, which may be encrypted."""

    def __init__(self, kind: str, tls: tuple[Path, Path] | None = None, port: int = 0) -> None:
        self.messages: list[SyslogMessage] = []
        self.problems: list[str] = []
        self.is_reading = threading.Event()
        self.is_reading.set()
        self._tls: ssl.SSLContext | None = None
        if tls is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(*tls)
        self._is_closing = False
        type_ = socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM
        self._socket = socket.socket(socket.AF_INET, type_)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self._socket.settimeout(0.05)
        run: Callable[[], None] = self._datagrams
        if kind == "tcp":
            self._socket.listen()
            run = self._connections
        self._thread = threading.Thread(target=run)
        self._thread.start()

    def texts(self, **data: str) -> list[str]:
        return [message.text for message in self.messages if data.items() <= message.data.items()]

    def close(self) -> None:
        self._is_closing = True
        self.is_reading.set()
        self._thread.join()
        self._socket.close()

    def _datagrams(self) -> None:
        while not self._is_closing:
            with contextlib.suppress(TimeoutError):
                self._take(self._socket.recv(65536))

    def _connections(self) -> None:
        while not self._is_closing:
            with contextlib.suppress(TimeoutError, OSError):
                connection, _ = self._socket.accept()
                with connection:
                    connection.settimeout(5)
                    wrapped = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
                    with wrapped:
                        wrapped.settimeout(0.05)
                        self._frames(wrapped)

    def _frames(self, connection: socket.socket) -> None:
        data = bytearray()
        while not self._is_closing:
            self.is_reading.wait()
            try:
                more = connection.recv(65536)
            except TimeoutError:
                continue
            if not more:
                if data:
                    self.problems.append(f"the connection ended in a message: {data[:50]!r}")
                return
            data += more
            at = 0
            while (space := data.find(b" ", at)) >= 0:
                digits = data[at:space]
                if not re.fullmatch(rb"[1-9]\d{0,5}", digits):
                    self.problems.append(f"not a length: {digits[:50]!r}")
                    return
                end = space + 1 + int(digits)
                if len(data) < end:
                    break
                self._take(bytes(data[space + 1 : end]))
                at = end
            del data[:at]

    def _take(self, message: bytes) -> None:
        try:
            self.messages.append(parse_rfc5424(message))
        except AssertionError as problem:
            self.problems.append(repr(problem))


@contextlib.contextmanager
def syslog_receiver(
    kind: str, tls: tuple[Path, Path] | None = None, port: int = 0
) -> Iterator[SyslogReceiver]:
    receiver = SyslogReceiver(kind, tls, port)
    try:
        yield receiver
    finally:
        receiver.close()
