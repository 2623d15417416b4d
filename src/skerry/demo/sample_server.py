"""The program of the sample image: a small web server, for containers, with the standard library alone.

| path | answer |
|---|---|
| `/` | a page with the version and the name of the container |
| `/health` | 200, or 500 if the variable `BROKEN` is set: for health checks and failing updates |
| `/whoami` | the name of the container |

It listens on the port of the variable `PORT` (80), and `VERSION` is shown on the page. This file is copied
into the image; `skerry.demo.sample_image` also runs it once, with `--list`, to learn which files it needs.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # Optional modules of http.server, whose libraries are larger than all the rest.
    sys.modules.update(dict.fromkeys(("bz2", "lzma", "ssl")))  # type: ignore[arg-type]  # None: cannot be imported

import http.client
import http.server
import json
import os
import signal
import socket
import socketserver
import threading
from typing import Any

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Skerry</title>
<body><h1>It works</h1><p>Version {version} on <b>{host}</b>.</p></body></html>
"""


class SampleHandler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        host, version = socket.gethostname(), os.environ.get("VERSION", "1")
        path = self.path.partition("?")[0]
        if path == "/health":
            is_broken = bool(os.environ.get("BROKEN"))
            self._answer(500 if is_broken else 200, "broken\n" if is_broken else "ok\n")
        elif path == "/whoami":
            self._answer(200, f"{host} {version}\n")
        elif path == "/":
            self._answer(200, PAGE.format(version=version, host=host), "text/html; charset=utf-8")
        else:
            self._answer(404, f"there is no {path[:200]}\n")

    def _answer(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *values: Any) -> None:
        if self.path != "/health":  # checks would fill the log
            super().log_message(format, *values)


class SampleServer(http.server.ThreadingHTTPServer):
    """Accepts many connections at once, and ends without waiting for them."""

    daemon_threads = True
    request_queue_size = 256


class DualStackServer(SampleServer):
    """Takes connections by IPv4 and by IPv6."""

    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not that of HTTPServer, which asks a name server for the name of its address.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = socket.gethostname(), self.server_address[1]


def open_server(port: int) -> SampleServer:
    """By both protocols, where the container has both."""
    kind = DualStackServer if socket.has_dualstack_ipv6() else SampleServer
    return kind(("", port), SampleHandler)


def serve() -> None:
    server = open_server(int(os.environ.get("PORT", "80")))

    def stop(number: int, frame: object) -> None:
        threading.Thread(target=server.shutdown).start()  # `shutdown` waits for this very thread

    signal.signal(signal.SIGTERM, stop)  # process 1 of a container ignores it otherwise
    server.serve_forever(poll_interval=0.2)


def list_files() -> None:
    """Serve one request, and print as JSON the modules and the libraries that are loaded then."""
    server = SampleServer(("127.0.0.1", 0), SampleHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request("GET", "/health")
    connection.getresponse().read()
    connection.close()
    server.shutdown()
    thread.join()
    modules = sorted({str(path) for module in list(sys.modules.values()) if (path := _file_of(module))})
    with open("/proc/self/maps") as maps:
        mapped = sorted({line.split(None, 5)[5].strip() for line in maps if " r-xp " in line and "/" in line})
    json.dump({"modules": modules, "mapped": mapped}, sys.stdout)


def _file_of(module: object) -> str | None:
    return getattr(module, "__file__", None)


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        list_files()
    else:
        serve()
