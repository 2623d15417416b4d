"""Orders at a real ACME server, which refuses one nonce of five: the way of a certificate to edge nodes."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from skerry.kit.clock import SystemClock
from skerry.kit.pki import CertificateAuthority
from skerry.store.local.memory import MemoryStore
from tests.support.pebble import PebbleServer
from tests.support.tls_servers import EDGE, INNER, TlsServer, played_edge, tls_server


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    made = MemoryStore(SystemClock())
    yield made
    await made.close()


@pytest.fixture
async def server(
    store: MemoryStore, authority: CertificateAuthority, pebble: PebbleServer
) -> AsyncIterator[TlsServer]:
    settings = pebble.settings(dns_hook=str(pebble.dns_hook()))
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(
            tls_server(store, SystemClock(), settings, authority=authority)
        )
        await stack.enter_async_context(played_edge(made, pebble.http_port))
        yield made


async def test_a_host_of_a_route_gets_a_certificate_that_edge_nodes_alone_can_have(
    server: TlsServer, pebble: PebbleServer
) -> None:
    server.routes.add("shop.example.org")
    made = await server.ready("shop.example.org")
    assert made.issuer.startswith("Pebble Intermediate CA")
    (told,) = server.edge.objects(EDGE)
    assert list(server.edge.objects(INNER)) == []
    assert server.edge.may_have(EDGE, made.ref)
    assert not server.edge.may_have(INNER, made.ref)
    pem = await server.vault.value(made.ref)
    # By OpenSSL: the chain leads to the root of the server, and is for the host.
    (pebble.folder / "root.pem").write_bytes(pebble.root())
    (pebble.folder / "pair.pem").write_bytes(pem)
    files = [
        "-CAfile",
        "root.pem",
        "-untrusted",
        "pair.pem",
        "-verify_hostname",
        "shop.example.org",
        "pair.pem",
    ]
    subprocess.run(["openssl", "verify", *files], cwd=pebble.folder, check=True, capture_output=True)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(pebble.folder / "pair.pem")
    assert "PRIVATE" not in repr(told)
