"""What the tests of this room share: the real server over a ledger in memory, and a trader that is none."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import structlog

from skerry.kit import pki
from skerry.kit.clock import ManualClock, SystemClock
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms.keys import SigningKey
from skerry.model.ids import CloudId
from skerry.wire.own.market.context import MarketContext
from tests.support.deals import OPEN
from tests.transport.http.conftest import Site, serving
from tests.transport.http.talking import Answer
from tests.wire.own.market.fakes import FakeAllowlist, FakeTrader
from tests.wire.rear.conftest import market_of


def desk_of(ledger: Ledger, provider: CloudId, trader: FakeTrader | None = None) -> MarketContext:
    """The bundle that the app gets."""
    numbers = itertools.count(1)
    return MarketContext(
        ledger, trader or FakeTrader(), FakeAllowlist(), provider, new_id=lambda: f"flavor-{next(numbers)}"
    )


@dataclass
class Shop:
    """One caller, and what is behind the server."""

    site: Site
    session: aiohttp.ClientSession
    ledger: Ledger
    trader: FakeTrader
    clock: ManualClock
    desk: MarketContext
    headers: dict[str, str] = field(default_factory=dict)

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self.headers, **({} if data is None else {"Content-Type": "application/json"})}
        async with self.session.request(method, path, data=data, headers=headers) as reply:
            return Answer(reply.status, {k.lower(): v for k, v in reply.headers.items()}, await reply.read())

    async def get(self, path: str) -> Any:
        answer = await self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.json

    async def post(self, path: str, body: Any = None) -> Answer:
        return await self.ask("POST", path, body)


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> pki.CertificateAuthority:
    return pki.CertificateAuthority.load_or_create(tmp_path_factory.mktemp("pki"), SystemClock())


@pytest.fixture
async def shop(cloud: pki.CertificateAuthority) -> AsyncIterator[Shop]:
    """A server with a market in which nothing is offered, for the user who runs it."""
    clock, trader, key = ManualClock(), FakeTrader(), SigningKey.generate()
    with structlog.testing.capture_logs():
        async with market_of(key, clock, OPEN) as (ledger, _):
            desk = desk_of(ledger, key.cloud, trader)
            async with serving(cloud, desk=desk) as site:
                yield Shop(site, await site.session(), ledger, trader, clock, desk)
