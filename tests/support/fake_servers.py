"""Servers that answer what they are told to, for tests of the command line: TCP, TLS or a unix socket."""

from __future__ import annotations

import json
import os
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from skerry.cli import main


def skerry(*arguments: str, **environment: str) -> Result:
    """A verb in this process, with no other settings than these."""
    clean = {name: None for name in os.environ if name.startswith("SKERRY_")}
    return CliRunner().invoke(main.cli, list(arguments), env={**clean, **environment})


@dataclass
class FakeServer:
    """Answers what it is told to answer, and remembers what it was asked."""

    url: str = ""
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    otherwise: tuple[int, bytes] = (404, b'{"error": "nothing there", "code": "not-found"}')
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    certificates: list[Any] = field(default_factory=list)  # that callers have shown over TLS

    def answer(self, route: str, value: Any, status: int = 200) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.answers[route] = (status, data)


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    pass


@contextmanager
def on_tcp(tls: ssl.SSLContext | None = None) -> Iterator[FakeServer]:
    fake = FakeServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    fake.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with _running(server):
        yield fake


@contextmanager
def on_unix(path: Path) -> Iterator[FakeServer]:
    fake = FakeServer(f"unix:{path}")
    with _running(_UnixServer(str(path), _handler(fake))):
        yield fake


@contextmanager
def _running(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fake.asked.append((self.command, self.path, dict(self.headers), body))
            if isinstance(self.connection, ssl.SSLSocket):
                fake.certificates.append(self.connection.getpeercert())
            status, data = fake.answers.get(f"{self.command} {self.path.partition('?')[0]}", fake.otherwise)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
