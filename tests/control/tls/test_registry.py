"""Requests of people about certificates: imports, issues and deletions, and what of them is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skerry.control.secrets import vault as vaults
from skerry.control.tls import registry as registries
from skerry.kit.clock import ManualClock
from skerry.kit.pki import CertificateAuthority
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.secrets import SecretKind, SecretRef, SecretUse
from skerry.model.tls_certificates import CertificateSource, CertificateState, RouteCertificate
from skerry.model.tls_settings import TlsSettings
from skerry.store.local.memory import MemoryStore
from tests.support.chains import ChainMaker
from tests.support.tls_servers import EDGE, INNER, TlsServer, tls_server

HOST = "shop.example.org"
SHOP = Namespace("shop")
SETTINGS = TlsSettings(acme_terms_agreed=True, internal_domains=("corp.internal",))


@pytest.fixture
async def server(
    store: MemoryStore, clock: ManualClock, authority: CertificateAuthority
) -> AsyncIterator[TlsServer]:
    async with tls_server(store, clock, SETTINGS, authority=authority, leads=False) as made:
        yield made


@pytest.fixture
def maker(clock: ManualClock) -> ChainMaker:
    return ChainMaker(clock.now())


async def dump(store: MemoryStore) -> bytes:
    page = await store.range("")
    return b"\n".join(entry.key.encode() + b" " + entry.value for entry in page.entries)


async def test_an_imported_certificate_is_served_and_its_key_is_nowhere_readable(
    server: TlsServer, maker: ChainMaker, store: MemoryStore
) -> None:
    chain, key = maker.pair(HOST)
    made, is_new = await server.registry.import_pair(HOST, chain, key, actor="ann")
    assert is_new
    assert made.state(maker.now.timestamp()) is CertificateState.READY
    assert (made.source, made.issuer, made.domains) == (CertificateSource.IMPORTED, "middle", (HOST,))
    assert list(server.edge.objects(EDGE)) == []  # no route has the host
    server.routes.add(HOST)
    (told,) = server.edge.objects(EDGE)
    assert told == RouteCertificate(DEFAULT_NAMESPACE, HOST, 1, (HOST,), (HOST,), made.not_after)
    assert server.edge.may_have(EDGE, made.ref)
    assert await server.vault.value(made.ref) == chain + key
    everything = await dump(store)
    secret = key.splitlines()[1]
    assert secret not in everything
    assert b"PRIVATE" not in everything


async def test_the_same_pair_makes_no_version_and_another_takes_its_place(
    server: TlsServer, maker: ChainMaker, store: MemoryStore
) -> None:
    first, second = maker.pair(HOST), maker.pair(HOST)
    await server.registry.import_pair(HOST, *first, actor="ann")
    assert not (await server.registry.import_pair(HOST, *first, actor="ann"))[1]
    made, is_new = await server.registry.import_pair(HOST, *second, actor="ann")
    assert (is_new, made.version) == (True, 2)
    with pytest.raises(errors.NotFound):
        await server.vault.value(SecretRef(DEFAULT_NAMESPACE, SecretKind.TLS, HOST, 1))
    await server.registry.delete(HOST, actor="ann")
    assert (await store.range(vaults.PREFIX)).entries == ()
    # Nodes keep values by name and version: a number is never used again.
    made, _ = await server.registry.import_pair(HOST, *first, actor="ann")
    assert made.version == 3


async def test_a_certificate_with_the_name_of_a_domain_must_be_for_it(
    server: TlsServer, maker: ChainMaker
) -> None:
    pair = maker.pair("*.example.org")
    await server.registry.import_pair("wild", *pair, actor="ann")
    await server.registry.import_pair(HOST, *pair, actor="ann")
    await server.registry.import_pair("_wildcard.example.org", *pair, actor="ann")
    with pytest.raises(errors.Invalid, match=r"is for \*.example.org, not for shop.example.com"):
        await server.registry.import_pair("shop.example.com", *pair, actor="ann")
    for name in ("../x", "a/b", "", "-", "x" * 254, "UPPER", "a b", "*.example.org"):
        with pytest.raises(errors.Invalid):
            await server.registry.import_pair(name, *pair, actor="ann")


async def test_a_tenant_serves_no_host_of_another(server: TlsServer, maker: ChainMaker) -> None:
    made, _ = await server.registry.import_pair("mine", *maker.pair(HOST), actor="eve", namespace=SHOP)
    server.routes.add(HOST)  # of the default namespace
    assert list(server.edge.objects(EDGE)) == []
    assert not server.edge.may_have(EDGE, made.ref)
    with pytest.raises(errors.NotFound):
        await server.registry.find("mine")
    with pytest.raises(errors.NotFound):
        await server.registry.find("shop/mine")
    with pytest.raises(errors.NotFound):
        await server.registry.delete("shop/mine", actor="ann")
    with pytest.raises(errors.Conflict, match="is taken"):
        await server.registry.issue(HOST, actor="eve", namespace=SHOP)


async def test_edge_nodes_get_nothing_else_of_the_vault(server: TlsServer, maker: ChainMaker) -> None:
    server.routes.add(HOST)
    made, _ = await server.registry.import_pair(HOST, *maker.pair(HOST), actor="ann")
    assert server.edge.may_have(EDGE, made.ref)
    assert not server.edge.may_have(INNER, made.ref)
    for kind in SecretKind:
        if kind is not SecretKind.TLS:
            assert not server.edge.may_have(EDGE, SecretRef(DEFAULT_NAMESPACE, kind, HOST, 1))
    assert not server.edge.may_have(EDGE, SecretRef(DEFAULT_NAMESPACE, SecretKind.TLS, HOST, 2))
    for kind in (SecretKind.TLS, SecretKind.TLS_KEY, SecretKind.ACME_ACCOUNT):
        with pytest.raises(errors.Invalid):
            SecretUse(HOST, kind)


async def test_a_certificate_in_use_is_deleted_by_force_alone(server: TlsServer, maker: ChainMaker) -> None:
    await server.registry.import_pair("wild", *maker.pair("*.example.org"), actor="ann")
    server.routes.add(HOST)
    with pytest.raises(errors.Conflict, match=f"used by the routes of {HOST}"):
        await server.registry.delete("wild", actor="ann")
    await server.registry.delete("wild", actor="ann", force=True)
    assert list(server.edge.objects(EDGE)) == []


async def test_edge_nodes_are_told_of_changes_and_others_of_nothing(
    server: TlsServer, maker: ChainMaker
) -> None:
    told: list[tuple[object, object, object]] = []
    server.edge.listen(lambda node, key, value: told.append((node, key.key, value)))
    server.routes.add(HOST)
    assert told == []
    await server.registry.import_pair(HOST, *maker.pair(HOST), actor="ann")
    (object,) = server.edge.objects(EDGE)
    assert told == [(EDGE, f"default/{HOST}", object)]
    server.routes.edges.add(INNER)
    server.routes.changed()
    assert told[1:] == [(INNER, f"default/{HOST}", object)]
    server.routes.edges.discard(EDGE)
    server.routes.changed()
    assert told[2:] == [(EDGE, f"default/{HOST}", None)]
    server.routes.remove(HOST)
    assert told[3:] == [(INNER, f"default/{HOST}", None)]


async def test_who_issues_follows_from_the_domain(server: TlsServer) -> None:
    async def source(domain: str) -> str:
        made, _ = await server.registry.issue(domain, actor="ann", namespace=SHOP)
        return made.source

    assert await source(HOST) == "acme"
    assert await source("web.shop.skerry") == "own-ca"
    assert await source("web.corp.internal") == "own-ca"
    with pytest.raises(errors.Unprocessable, match=r"end with .shop.skerry"):
        await source("web.other.skerry")
    with pytest.raises(errors.FailedPrecondition, match=r"tls.dns_hook"):
        await source("*.example.org")
    for domain in ("localhost", "Shop.example.org", "10.0.0.1", "a..b", "*.*.b.c", "a.*.b", "ü.example.org"):
        with pytest.raises(errors.Invalid, match="is no domain"):
            await source(domain)


async def test_nothing_is_ordered_before_the_terms_are_agreed_to(
    store: MemoryStore, clock: ManualClock, authority: CertificateAuthority
) -> None:
    async with tls_server(store, clock, TlsSettings(), authority=authority, leads=False) as server:
        with pytest.raises(errors.FailedPrecondition, match=r"tls.acme_terms_agreed"):
            await server.registry.issue(HOST, actor="ann")
    settings = TlsSettings(acme_directory="http://example.org", acme_terms_agreed=True)
    async with tls_server(store, clock, settings, authority=authority, leads=False) as server:
        with pytest.raises(errors.FailedPrecondition, match="must begin with https://"):
            await server.registry.issue(HOST, actor="ann")


async def test_one_namespace_cannot_use_up_what_others_may_have(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registries, "MAX_CERTIFICATES", 4)
    await server.registry.issue("a.example.org", actor="eve", namespace=SHOP)
    with pytest.raises(errors.TooLarge, match="1 certificates in the namespace"):
        await server.registry.issue("b.example.org", actor="eve", namespace=SHOP)


async def test_an_imported_certificate_is_not_issued_over(server: TlsServer, maker: ChainMaker) -> None:
    await server.registry.import_pair(HOST, *maker.pair(HOST), actor="ann")
    with pytest.raises(errors.Conflict, match="was imported"):
        await server.registry.issue(HOST, actor="ann")
