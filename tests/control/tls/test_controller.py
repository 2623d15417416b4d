"""The leader and its certificates: failures and pauses, renewals, the own CA, and several servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from skerry.control.secrets import vault as vaults
from skerry.control.secrets.rotation import KeyRotation
from skerry.control.tls.acme_api import AcmeFailure
from skerry.kit import pki
from skerry.kit.pki import CertificateAuthority
from skerry.model.ids import Namespace
from skerry.model.tls_certificates import CertificateSource, CertificateState, ChallengeKind, TlsCertificate
from tests.control.tls.test_killed_leaders import HOST, LIFE_S, World
from tests.support.chains import ChainMaker
from tests.support.played_acme import StopPoint
from tests.support.tls_servers import EDGE, OWN_CA, TlsServer, tls_server
from tests.support.waiting import eventually

SHOP = Namespace("shop")


@pytest.fixture
async def world(authority: CertificateAuthority) -> AsyncIterator[World]:
    made = World(ChallengeKind.HTTP, authority)
    yield made
    await made.store.close()


async def failed(server: TlsServer, name: str = HOST, attempts: int = 1) -> TlsCertificate:
    """The certificate once so many attempts have failed, and nothing goes on."""

    def found() -> TlsCertificate | None:
        one = server.value(name)
        return one if one is not None and one.error and one.attempts >= attempts else None

    made: TlsCertificate = await eventually(found)
    return made


async def test_a_failure_is_shown_and_tried_again_after_its_pause_by_the_next_leader_too(
    world: World,
) -> None:
    world.routes.add(HOST)
    world.acme.failures = [AcmeFailure("the ACME server refuses: no", retry_after_s=500.0)]
    async with world.server() as server:
        one = await failed(server)
        assert one.error == "the ACME server refuses: no"
        assert one.state(world.clock.now()) is CertificateState.FAILED
        assert one.retry_at >= world.clock.now() + 500
        (event,) = [each for each in await server.events.list_after("0") if each.event.kind == "tls.failed"]
        assert event.event.reason == one.error
        await eventually(lambda: server.value(HOST).order is None)  # type: ignore[union-attr]
    world.clock.advance(400)
    async with world.server() as server:
        await server.table.sync()
        await asyncio.sleep(0)
        assert world.acme.orders == {}
    world.clock.advance(101)
    async with world.server() as server:
        one = await server.ready(HOST)
        assert (one.error, one.attempts, one.retry_at) == ("", 0, 0.0)


async def test_a_renewal_that_fails_leaves_the_certificate(world: World) -> None:
    world.routes.add(HOST)
    await world.get(version=1)
    world.clock.advance(LIFE_S * 0.7)
    world.acme.failures = [AcmeFailure("no")]
    async with world.server() as server:
        one = await failed(server)
        assert one.version == 1
        assert one.state(world.clock.now()) is CertificateState.READY
        assert b"PRIVATE KEY" in await server.vault.value(one.ref)
        assert server.edge.may_have(EDGE, one.ref)


async def test_too_many_orders_stop_all_orders_for_as_long_as_the_server_says(world: World) -> None:
    for number in range(8):
        world.routes.add(f"{number}.example.org")
    limit = AcmeFailure("too many", is_temporary=True, is_rate_limit=True, retry_after_s=7200.0)
    world.acme.failures = [limit] * 5  # those that were under way
    async with world.server() as server:
        await eventually(lambda: sum(bool(one.error) for one in server.table.values()) == 5)
        await server.table.sync()
        assert [one.attempts for one in server.table.values() if one.error] == [1] * 5
        assert world.acme.orders == {}
    world.clock.advance(7000)
    async with world.server() as server:
        await server.table.sync()
        assert world.acme.orders == {}
    world.clock.advance(86400)
    async with world.server() as server:
        await eventually(lambda: all(one.version for one in server.table.values()))
    assert len(world.acme.orders) == 8


async def test_a_challenge_that_nobody_serves_fails_the_order_and_the_next_attempt_places_another(
    world: World,
) -> None:
    world.routes.add(HOST)
    async with world.server() as server:
        server.routes.edges.clear()  # no edge node serves it
        one = await failed(server)
        assert "could not be verified: the challenge was not found" in one.error
        await eventually(lambda: server.value(HOST).order is None)  # type: ignore[union-attr]
    world.clock.advance(3600)
    await world.get(version=1)
    assert [order.status for order in world.acme.orders.values()] == ["invalid", "valid"]


async def test_an_account_that_the_server_has_forgotten_is_registered_again_with_its_key(
    world: World,
) -> None:
    world.routes.add(HOST)
    await world.get(version=1)
    (key,) = world.acme.accounts
    world.acme.accounts.clear()
    world.acme.orders.clear()
    world.clock.advance(LIFE_S * 0.7)
    async with world.server() as server:
        await failed(server)
    world.clock.advance(3600)
    await world.get(version=2)
    assert list(world.acme.accounts) == [key]


async def test_only_the_leader_orders_and_another_goes_on_where_it_was_killed(
    world: World, authority: CertificateAuthority
) -> None:
    world.routes.add(HOST)
    world.set_stop(stop := StopPoint("authorization"))
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(world.server())
        await stop.reached.wait()
        steps = list(stop.steps)
        async with tls_server(
            world.store,
            world.clock,
            world.settings,
            authority=authority,
            routes=first.routes,
            connector=world.acme,
            keys=world.keys,
            name="two",
        ) as second:
            await second.table.sync()
            assert not second.leader.is_leading
            assert stop.steps == steps, "it does nothing while the other leads"
            world.set_stop(StopPoint())
            world.current = second
            await stack.aclose()  # the first is gone
            await second.ready(HOST)
            assert second.leader.is_leading
    assert len(world.acme.orders) == 1
    assert len(world.acme.accounts) == 1


async def test_internal_names_get_certificates_of_the_own_ca_and_are_renewed(
    world: World, authority: CertificateAuthority
) -> None:
    world.routes.add("web.shop.skerry", OWN_CA, SHOP)
    world.routes.add("web.other.skerry", OWN_CA, SHOP)  # not of its namespace
    world.clock.advance(authority._clock.now() - world.clock.now())  # the CA has a clock of its own
    async with world.server() as server:
        one = await server.ready("web.shop.skerry", SHOP)
        assert one.source is CertificateSource.OWN_CA
        pem = await server.vault.value(one.ref)
        assert pki.is_issued_by(pem, authority.certificate_pem)
        assert pki.read_certificate(pem).hosts == {"web.shop.skerry"}
        assert server.value("web.other.skerry", SHOP) is None
        assert server.edge.may_have(EDGE, one.ref)
        _, is_new = await server.registry.issue("web.shop.skerry", actor="ann", namespace=SHOP)
        assert not is_new
        again = await server.ready("web.shop.skerry", SHOP, version=2)
        assert again.serial != one.serial
    assert world.acme.orders == {}


async def test_an_import_while_an_order_runs_wins_and_the_order_is_ended(world: World) -> None:
    world.routes.add(HOST)
    world.set_stop(stop := StopPoint("answer"))
    pair = ChainMaker(world.clock.now()).pair(HOST)
    async with world.server() as server:
        await stop.reached.wait()
        world.store.stop = None
        await server.registry.import_pair(HOST, *pair, actor="ann")
    async with world.server() as server:
        world.set_stop(StopPoint())
        one: TlsCertificate = await eventually(
            lambda: (found := server.value(HOST)) and found.order is None and found
        )
        assert one.source is CertificateSource.IMPORTED
        assert await server.vault.value(one.ref) == b"".join(pair)
        assert [each.kind for each in server.edge.objects(EDGE)] == ["tls-certificate"]
        page = await world.store.range(f"{vaults.PREFIX}tls-key/")
        assert page.entries == ()


async def test_a_deletion_while_an_order_runs_removes_the_dns_record(authority: CertificateAuthority) -> None:
    world = World(ChallengeKind.DNS, authority)
    world.set_stop(stop := StopPoint("answer"))
    async with world.server() as server:
        await server.registry.issue(HOST, actor="ann")
        await stop.reached.wait()
        world.store.stop = None
        assert list(world.hook.records) == [HOST]
        await server.registry.delete(HOST, actor="ann")
    world.set_stop(StopPoint())
    async with world.server() as server:
        await eventually(lambda: server.value(HOST) is None)
        await eventually(lambda: not world.hook.records)
        assert [entry.key.split("/")[1] for entry in (await world.store.range(vaults.PREFIX)).entries] == [
            "acme-account"
        ]
    await world.store.close()


async def test_keys_can_be_rotated_while_certificates_are_ordered(world: World) -> None:
    world.routes.add(HOST)
    world.set_stop(stop := StopPoint("answer"))
    async with world.server() as server:
        await stop.reached.wait()
        world.store.stop = None
        rotation = KeyRotation(world.store, server.vault, server.events, world.clock)
        assert (await rotation.rotate(actor="ann")).sealed == 2  # of the account, and of the order
    await world.get(version=1)
    async with world.server() as server:
        one = await server.ready(HOST)
        assert b"PRIVATE KEY" in await server.vault.value(one.ref)
    assert len(world.acme.orders) == 1


async def test_a_person_asks_for_another_attempt_but_not_around_the_pause(world: World) -> None:
    world.acme.failures = [AcmeFailure("no")] * 5
    async with world.server() as server:
        await server.registry.issue(HOST, actor="ann")
        one = await failed(server)
        await eventually(lambda: server.value(HOST).order is None)  # type: ignore[union-attr]
        again, _ = await server.registry.issue(HOST, actor="ann")
        assert again.retry_at >= one.failed_at + 48  # a minute, with jitter
        assert len(world.acme.failures) == 4
