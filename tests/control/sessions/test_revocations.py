"""Revoked certificates in sessions: which nodes are told of which, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from msgspec.structs import replace

from skerry.control.sessions.feeds import SessionFeeds
from skerry.control.sessions.node_session import NodeSessions
from skerry.kit.clock import ManualClock
from skerry.model.callers import RevokedCertificate
from skerry.model.node_messages import RevocationUpdate, SessionClose
from skerry.model.settings import FleetSettings
from skerry.store.local.memory import MemoryStore
from tests.control.sessions.test_node_session import HELLO, FakeInstances, Told
from tests.support.fleets import Fleet, fleet_on

FIRST, SECOND = RevokedCertificate("a" * 32, 100.0), RevokedCertificate("b" * 32, 200.0)


class FakeCertificates:
    """The test says which were revoked."""

    def __init__(self, *revoked: RevokedCertificate) -> None:
        self._revoked = list(revoked)
        self._callback: Callable[[Sequence[RevokedCertificate]], None] = lambda revoked: None

    def revoked(self) -> Sequence[RevokedCertificate]:
        return tuple(self._revoked)

    def listen_revoked(self, callback: Callable[[Sequence[RevokedCertificate]], None]) -> None:
        self._callback = callback

    def revoke(self, one: RevokedCertificate) -> None:
        self._revoked.append(one)
        self._callback([one])


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with fleet_on(store, clock) as made:
        yield made
    await store.close()


@pytest.fixture
def instances(fleet: Fleet) -> FakeInstances:
    return FakeInstances(fleet.instance_table)


async def test_a_node_is_told_all_revoked_certificates_before_its_orders_and_then_further_ones(
    fleet, instances
):
    certificates = FakeCertificates(FIRST)
    feeds = SessionFeeds(certificates=certificates)
    served = NodeSessions(fleet.nodes, instances, FleetSettings(), feeds=feeds)
    async with served.connect("n1", replace(HELLO, takes_revocations=True)) as session:
        told = Told(session)
        assert await told.next() == RevocationUpdate((FIRST,))
        assert (await told.orders()).is_full
        certificates.revoke(SECOND)
        assert await told.next() == RevocationUpdate((SECOND,))
    async with served.connect("n1", replace(HELLO, takes_revocations=True)) as session:
        assert await Told(session).next() == RevocationUpdate((FIRST, SECOND))


async def test_a_node_that_does_not_know_of_revocations_is_told_of_none(fleet, instances):
    certificates = FakeCertificates(FIRST)
    feeds = SessionFeeds(certificates=certificates)
    served = NodeSessions(fleet.nodes, instances, FleetSettings(), feeds=feeds)
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        assert (await told.orders()).is_full
        certificates.revoke(SECOND)
        session.end("test")
        assert await told.next() == SessionClose("test")
