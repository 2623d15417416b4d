"""Which hosts of routes need certificates, from where, and which nodes serve them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.routes.registry import RouteRegistry
from skerry.control.routes.table import RouteTable
from skerry.control.routes.wanted_domains import RouteDomains
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model.container_options import NodeFeature
from skerry.model.ids import Namespace, NodeId
from skerry.model.nodes import NodeFacts
from skerry.model.routes import RouteSpec, RouteTarget
from skerry.model.settings import EventSettings
from skerry.model.tls_certificates import CertificateSource, InternalDomains
from skerry.model.tls_settings import TlsSettings
from skerry.store.local.memory import MemoryStore
from tests.control.sessions.test_node_session import HELLO
from tests.support.fleets import Fleet, fleet_on

WEB = RouteTarget.parse("service/web")


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with fleet_on(store, clock) as made:
        yield made
    await store.close()


@pytest.fixture
async def table(fleet: Fleet) -> AsyncIterator[RouteTable]:
    table = RouteTable(fleet.store)
    loop = asyncio.ensure_future(table.run())
    await table.ready()
    yield table
    await cancel_and_wait([loop])


async def add(fleet: Fleet, table: RouteTable, spec: RouteSpec, namespace: str = "default") -> None:
    registry = RouteRegistry(
        fleet.store, EventLog(fleet.store, fleet.clock, EventSettings()), fleet.clock, table
    )
    await registry.create(spec.host.replace("*.", "any."), spec, actor="test", namespace=Namespace(namespace))
    await table.sync()


async def test_each_host_with_tls_has_the_source_that_fits_it(fleet: Fleet, table: RouteTable) -> None:
    for host in ("shop.example.org", "web.default.skerry", "web.corp.example", "localhost"):
        await add(fleet, table, RouteSpec(host, target=WEB))
    await add(fleet, table, RouteSpec("plain.example.org", target=WEB, http_only=True))
    settings = TlsSettings(acme_terms_agreed=True, internal_domains=("corp.example",))
    wanted = RouteDomains(
        table, fleet.nodes, settings, InternalDomains(more=settings.internal_domains)
    ).domains_wanted()
    assert {each.domain: each.source for each in wanted} == {
        "shop.example.org": CertificateSource.ACME,
        "web.default.skerry": CertificateSource.OWN_CA,
        "web.corp.example": CertificateSource.OWN_CA,
    }
    [imported] = [
        each.source
        for each in RouteDomains(table, fleet.nodes, TlsSettings(), InternalDomains()).domains_wanted()
        if each.domain == "shop.example.org"
    ]
    assert imported is CertificateSource.IMPORTED, "nothing is ordered before somebody agrees to the terms"


async def test_nodes_that_serve_routes_are_told_apart_and_changes_are_told(
    fleet: Fleet, table: RouteTable
) -> None:
    domains = RouteDomains(table, fleet.nodes, TlsSettings(), InternalDomains())
    changes: list[str] = []
    domains.listen(lambda: changes.append("changed"))
    await fleet.nodes.register("n1", replace(HELLO, facts=NodeFacts(features=(NodeFeature.EDGE,))))
    await fleet.nodes.register("n2", replace(HELLO, name="other", facts=NodeFacts()))
    assert [domains.is_edge(NodeId(each)) for each in ("n1", "n2", "n3")] == [True, False, False]
    assert changes == ["changed"]
    await add(fleet, table, RouteSpec("shop.example.org", target=WEB))
    assert changes == ["changed"] * 2
