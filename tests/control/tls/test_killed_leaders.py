"""A leader that is killed at every step of an order: the next one ends what it began, once.

Every write to the store, every request to the ACME server and every call of the DNS hook is a step; the world
stops before it, or after it has happened and before the leader knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import pytest

from skerry.control.secrets import vault as vaults
from skerry.control.tls.acme_api import OfferedChallenge
from skerry.control.tls.dns_hook import DnsHook
from skerry.kit.clock import ManualClock
from skerry.kit.pki import CertificateAuthority
from skerry.model.tls_certificates import ChallengeKind, HttpChallenge
from skerry.model.tls_settings import TlsSettings
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Expect, Op
from tests.support.played_acme import PlayedAcme, StopPoint
from tests.support.secrets import MemoryKeyFile
from tests.support.tls_servers import EDGE, PlayedRoutes, TlsServer, tls_server
from tests.support.waiting import eventually

HOST = "shop.example.org"
LIFE_S = 90 * 86400


class StoppingStore(MemoryStore):
    """Writes are steps, except those of elections, and of the first key of the vault."""

    stop: StopPoint | None = None

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        if self.stop is None or any(op.key in ("leader", "secret-key") for op in ops):
            return await super().commit(ops, expect)
        await self.stop.before("commit")
        revision = await super().commit(ops, expect)
        await self.stop.done()
        return revision


class RecordedHook(DnsHook):
    """Records of a DNS server in memory."""

    def __init__(self, settings: TlsSettings) -> None:
        super().__init__(settings)
        self.records: dict[str, str] = {}
        self.stop = StopPoint()

    async def present(self, domain: str, value: str) -> None:
        await self.stop.before("present")
        self.records[domain] = value
        await self.stop.done()

    async def cleanup(self, domain: str, value: str) -> None:
        await self.stop.before("cleanup")
        self.records.pop(domain, None)
        await self.stop.done()


class World:
    """A store, an ACME server and a DNS server, which outlive servers."""

    def __init__(self, kind: ChallengeKind, authority: CertificateAuthority) -> None:
        self.clock = ManualClock()
        self.store = StoppingStore(self.clock)
        self.keys = MemoryKeyFile()
        self.settings = TlsSettings(
            acme_terms_agreed=True, challenge=kind, challenge_delay_s=0.0, dns_hook="/hook"
        )
        self.hook = RecordedHook(self.settings)
        self.acme = PlayedAcme(self.clock, self._is_published, life_s=LIFE_S)
        self.routes = PlayedRoutes()
        self._authority = authority
        self.current: TlsServer | None = None  # whose edge nodes are asked

    @asynccontextmanager
    async def server(self) -> AsyncIterator[TlsServer]:
        routes = PlayedRoutes(*self.routes.domains)
        async with tls_server(
            self.store,
            self.clock,
            self.settings,
            authority=self._authority,
            routes=routes,
            connector=self.acme,
            keys=self.keys,
            hook=self.hook,
            is_alone=True,
        ) as server:
            self.current = server
            yield server

    def set_stop(self, stop: StopPoint) -> None:
        self.store.stop = self.acme.stop = self.hook.stop = stop

    def _is_published(self, domain: str, challenge: OfferedChallenge) -> bool:
        if challenge.kind is ChallengeKind.DNS:
            return self.hook.records.get(domain) == challenge.authorization
        assert self.current is not None
        served = HttpChallenge(challenge.token, challenge.authorization)
        return served in self.current.edge.objects(EDGE)

    async def get(self, version: int) -> None:
        """Let a server work until the certificate has this version."""
        self.set_stop(StopPoint())
        async with self.server() as server:
            await server.ready(HOST, version=version)


@pytest.fixture(params=list(ChallengeKind))
async def world(request: pytest.FixtureRequest, authority: CertificateAuthority) -> AsyncIterator[World]:
    made = World(request.param, authority)
    made.routes.add(HOST)
    yield made
    await made.store.close()


async def sealed(store: MemoryStore) -> list[str]:
    page = await store.range(vaults.PREFIX)
    return [entry.key.split("/")[1] for entry in page.entries]


async def check_clean(world: World, version: int) -> None:
    """There is one account and one certificate, and nothing that an order has left behind."""
    async with world.server() as server:
        made = await server.ready(HOST, version=version)
        assert (made.version, made.attempts, made.error) == (version, 0, "")
        assert b"PRIVATE KEY" in await server.vault.value(made.ref)
        assert [each.kind for each in server.edge.objects(EDGE)] == ["tls-certificate"]
    assert len(world.acme.accounts) == 1
    assert sorted(await sealed(world.store)) == ["acme-account", "tls"]
    assert world.hook.records == {}


async def test_a_killed_leader_is_followed_by_one_that_ends_the_first_order(
    world: World, authority: CertificateAuthority
) -> None:
    await world.get(version=1)
    steps = len(world.acme.stop.steps)
    assert steps > 12
    for after in (False, True):
        for at in range(1, steps + 1):
            again = World(ChallengeKind(world.settings.challenge), authority)
            again.routes.add(HOST)
            again.set_stop(stop := StopPoint(at, after=after))
            async with again.server():
                await wait_for(stop, at)
            again.clock.advance(3600)
            await again.get(version=1)
            await check_clean(again, version=1)
            # Only an order whose address was lost is placed again.
            assert len(again.acme.orders) <= (2 if stop.steps[-1] in ("place", "commit") else 1), stop.steps
            await again.store.close()


async def test_a_leader_that_is_killed_while_it_renews_leaves_the_present_certificate(
    world: World, authority: CertificateAuthority
) -> None:
    await world.get(version=1)
    world.clock.advance(LIFE_S * 0.7)
    await world.get(version=2)
    steps = len(world.acme.stop.steps)
    for at in range(1, steps + 1):
        again = World(ChallengeKind(world.settings.challenge), authority)
        again.routes.add(HOST)
        await again.get(version=1)
        again.clock.advance(LIFE_S * 0.7)
        again.set_stop(stop := StopPoint(at, after=at % 2 == 0))
        async with again.server() as server:
            await wait_for(stop, at)
            record = await server.table.read(f"default/{HOST}")
            assert record is not None
            assert b"PRIVATE KEY" in await server.vault.value(record.value.ref)
            await eventually(partial(server.edge.may_have, EDGE, record.value.ref), what="it is served")
        again.clock.advance(3600)
        await again.get(version=2)
        await check_clean(again, version=2)
        assert len(again.acme.orders) <= 3
        await again.store.close()


async def test_a_leader_that_dies_again_and_again_while_it_places_an_order_waits_longer_each_time(
    authority: CertificateAuthority,
) -> None:
    world = World(ChallengeKind.HTTP, authority)
    world.routes.add(HOST)
    placed = []
    for _ in range(8):
        world.set_stop(stop := StopPoint("place", after=True))
        async with world.server() as server:
            retry_at = await after_place(server, stop)
        placed.append(retry_at - world.clock.now())
        world.clock.advance(retry_at - world.clock.now() + 1)
    assert placed[0] < 75
    assert all(later > 1.5 * earlier for earlier, later in pairwise(placed[:6]))
    assert max(placed) > 60_000
    await world.store.close()


async def after_place(server: TlsServer, stop: StopPoint) -> float:
    async with asyncio.timeout(30):
        await stop.reached.wait()
    record = await server.table.read(f"default/{HOST}")
    assert record is not None
    return record.value.retry_at


async def wait_for(stop: StopPoint, at: int) -> None:
    async with asyncio.timeout(30):
        await stop.reached.wait()
    assert len(stop.steps) == at
