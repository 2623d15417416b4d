"""Orders at a real ACME server, which refuses one nonce of five: the way of a certificate to edge nodes."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from skerry.kit.clock import SystemClock
from skerry.kit.pki import CertificateAuthority
from skerry.model import errors
from skerry.store.local.memory import MemoryStore
from tests.support.pebble import PebbleServer
from tests.support.tls_servers import EDGE, INNER, TlsServer, played_edge, tls_server
from tests.support.waiting import eventually


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


async def test_hosts_that_are_wanted_together_share_one_account_and_have_keys_of_their_own(
    server: TlsServer, pebble: PebbleServer
) -> None:
    hosts = [f"{number}.example.net" for number in range(7)]
    for host in hosts:
        server.routes.add(host)
    made = [await server.ready(host) for host in hosts]
    assert len({one.serial for one in made}) == len(hosts)
    keys = {(await server.vault.value(one.ref)).partition(b"BEGIN PRIVATE")[2] for one in made}
    assert len(keys) == len(hosts)
    assert len(server.accounts.values()) == 1
    assert {each.kind for each in server.edge.objects(EDGE)} == {"tls-certificate"}  # no challenge is left


async def test_a_wildcard_is_verified_by_the_dns_hook_and_its_records_are_removed(
    server: TlsServer, pebble: PebbleServer
) -> None:
    server.routes.add("*.wild.example.org")
    made = await server.ready("_wildcard.wild.example.org")
    assert made.domains == ("*.wild.example.org",)
    calls = [call[0] for call in pebble.hook_calls() if call[1] == "wild.example.org"]
    assert calls == ["present", "cleanup"]


async def test_a_renewal_has_another_key_and_the_old_one_is_gone(server: TlsServer) -> None:
    server.routes.add("renewed.example.org")
    first = await server.ready("renewed.example.org")
    before = await server.vault.value(first.ref)
    await server.registry.issue("renewed.example.org", actor="ann")
    second = await server.ready("renewed.example.org", version=2)
    assert (await server.vault.value(second.ref)).partition(b"BEGIN PRIVATE")[2] not in before
    with pytest.raises(errors.NotFound):
        await server.vault.value(first.ref)


async def test_what_the_acme_server_found_wrong_is_shown(
    store: MemoryStore, authority: CertificateAuthority, pebble: PebbleServer
) -> None:
    async with tls_server(store, SystemClock(), pebble.settings(), authority=authority) as server:
        server.routes.add("nobody.example.org")  # no edge node listens
        one = await eventually(
            lambda: (found := server.value("nobody.example.org")) and found.error and found
        )
        assert "nobody.example.org could not be verified" in one.error
        assert "connection refused" in one.error
        assert one.version == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"acme_ca_file": ""}, "cannot be verified.*tls.acme_ca_file"),
        ({"acme_ca_file": "/nowhere/ca.pem"}, "cannot be reached"),
        ({"acme_directory": "https://127.0.0.1:1/dir"}, "cannot be reached"),
    ],
)
async def test_an_acme_server_that_cannot_be_trusted_or_reached_is_not_used(
    store: MemoryStore,
    authority: CertificateAuthority,
    pebble: PebbleServer,
    change: dict[str, str],
    reason: str,
) -> None:
    settings = replace(pebble.settings(), **change)
    before = pebble.accounts()
    async with tls_server(store, SystemClock(), settings, authority=authority) as server:
        server.routes.add("shop.example.org")
        one = await eventually(lambda: (found := server.value("shop.example.org")) and found.error and found)
        assert re.search(reason, one.error), one.error
        assert one.retry_at > one.failed_at
    assert pebble.accounts() == before
