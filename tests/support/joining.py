"""Machines that join over real HTTP and HTTPS on loopback, at a cloud in memory.

with http_server(joining(cloud)) as url:
    await Membership(folder, clock).join(url, await new_token(cloud), "edge-1")
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from skerry.kit import pki, tls
from skerry.model import errors
from skerry.model.callers import Role
from skerry.node.agent.node_identity import NodeIdentity
from tests.support.clouds import Cloud
from tests.support.waiting import PATIENCE_S

GRPC = "127.0.0.1:50052"

Answer = Callable[[str, bytes], tuple[int, bytes]]


@contextmanager
def http_server(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """A small server whose answers come from `answer(path, body)`; its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply(b"")

        def do_POST(self) -> None:
            self._reply(self.rfile.read(int(self.headers["Content-Length"])))

        def _reply(self, body: bytes) -> None:
            status, said = answer(self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = False

        def handle_error(self, *_: object) -> None:
            pass  # refused handshakes: the client's view is what the tests look at

        def get_request(self) -> tuple[object, object]:
            sock, address = super().get_request()
            return (context.wrap_socket(sock, server_side=True) if context else sock), address

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        scheme = "https" if context else "http"
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def joining(cloud: Cloud) -> Answer:
    """What Skerry's own routes answer."""
    loop = asyncio.get_running_loop()

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/ca.pem":
            return 200, cloud.authority.certificate_pem
        if not body:
            return 200, json.dumps({"grpc": GRPC}).encode()
        asked = json.loads(body)
        previous = asked.get("certificate", "").encode()
        work = cloud.identity.join(
            asked["token"], asked["csr"].encode(), asked["name"], previous_pem=previous
        )
        try:
            joined = asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)
        except errors.SkerryError as error:
            return 401, json.dumps({"error": error.message, "code": error.slug}).encode()
        said = {
            "node": joined.node,
            "certificate": joined.certificate_pem.decode(),
            "ca": joined.ca_pem.decode(),
            "grpc": GRPC,
        }
        return 200, json.dumps(said).encode()

    return answer


def https_context(cloud: Cloud, folder: Path, hosts: tuple[str, ...] = ("127.0.0.1",)) -> ssl.SSLContext:
    key = folder / "https.key"
    request = pki.SigningRequest.parse(pki.make_request(pki.load_or_create_key(key)))
    issued = cloud.authority.issue(
        request, name="s", role="server", lifetime_s=30 * 86400, server=True, hosts=hosts
    )
    (folder / "https.crt").write_bytes(issued.pem)
    context = tls.https_server(cloud.authority.certificate_pem)
    tls.load(context, folder / "https.crt", key)
    return context


async def new_token(cloud: Cloud, role: Role = Role.NODE) -> str:
    return (await cloud.identity.create_token(role, ttl_s=None, note="", actor="test"))[1]


async def joined_in(folder: Path, cloud: Cloud, **more: object) -> tuple[NodeIdentity, str]:
    membership = NodeIdentity(folder, cloud.clock, **more)  # type: ignore[arg-type]
    with http_server(joining(cloud)) as url:
        place = await membership.join(url, await new_token(cloud), "edge-1")
    return membership, place.node


def certificate_in(folder: Path) -> pki.IssuedCertificate:
    return pki.read_certificate((folder / "node.crt").read_bytes())
