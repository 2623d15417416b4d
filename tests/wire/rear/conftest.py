"""What the tests of this room share: the real server over a real ledger in memory."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import structlog

from skerry.control.events.log import EventLog
from skerry.kit import pki
from skerry.kit.clock import ManualClock, SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.request_proofs import ProofVerifier, RequestSigner
from skerry.market.terms.signatures import ContractSigner
from skerry.model.callers import Role
from skerry.model.ids import CloudId
from skerry.model.market_settings import MarketSettings
from skerry.model.settings import EventSettings
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Store
from skerry.wire.rear.context import RearContext
from tests.support.deals import OPEN
from tests.transport.http.conftest import Site, serving
from tests.transport.http.talking import Answer

WHOLE: dict[str, Any] = {
    "FlavorID": "f-1",
    "Characteristics": {"Architecture": "amd64", "Cpu": 8, "Memory": 16384, "EphemeralStorage": 100},
    "Price": {"Amount": "0.10", "Currency": "EUR", "Period": "PT1H"},
}
PARTS: dict[str, Any] = {
    **WHOLE,
    "Policy": {"Partitionable": {"CpuMin": 1, "MemoryMin": 512, "CpuStep": 1, "MemoryStep": 512}},
}


@dataclass
class Market:
    """One caller, the user who runs the server, and what is behind it."""

    site: Site
    session: aiohttp.ClientSession
    ledger: Ledger
    rear: RearContext
    clock: ManualClock
    key: SigningKey
    headers: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return await self.ask("POST", path, data=data, **options)

    async def ask(self, method: str, path: str, **options: Any) -> Answer:
        options["headers"] = {**self.headers, **options.get("headers", {})}
        async with self.session.request(method, path, skip_auto_headers=["Content-Type"], **options) as reply:
            headers = {name.lower(): value for name, value in reply.headers.items()}
            return Answer(reply.status, headers, await reply.read())

    async def sell(self, offer: dict[str, Any] | None = None, **changes: Any) -> Any:
        answer = await self.post("/api/flavors", {**(PARTS if offer is None else offer), **changes})
        assert answer.status == 201, answer.body
        return answer.json

    async def reserve(self, cpu: int | None = None, memory: int = 512, **more: Any) -> Any:
        body: dict[str, Any] = {"FlavorID": "f-1", **more}
        if cpu is not None:
            body["Partition"] = {"Cpu": cpu, "Memory": memory}
        answer = await self.post("/api/reserveflavor", body)
        assert answer.status == 200, answer.body
        return answer.json

    async def buyer(self, role: Role = Role.DEPLOYER) -> Market:
        """Somebody else, with a token."""
        return Market(
            self.site,
            self.session,
            self.ledger,
            self.rear,
            self.clock,
            self.key,
            await self.site.bearer(role),
        )

    def signed(self, prover: RequestSigner, method: str, path: str, body: bytes = b"") -> dict[str, str]:
        return {"Authorization": prover.header(self.key.cloud, method, path, body)}


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> pki.CertificateAuthority:
    return pki.CertificateAuthority.load_or_create(tmp_path_factory.mktemp("pki"), SystemClock())


@pytest.fixture(scope="session")
def provider() -> SigningKey:
    return SigningKey.generate()


@asynccontextmanager
async def market_of(
    key: SigningKey,
    clock: ManualClock,
    settings: MarketSettings,
    store: Store | None = None,
    is_known: Callable[[CloudId], bool] | None = None,
) -> AsyncIterator[tuple[Ledger, RearContext]]:
    """A ledger in memory, and the bundle that the app gets; `store` is closed with it."""
    store = store or MemoryStore(clock)
    numbers = itertools.count(1)
    ledger = Ledger(
        store,
        clock,
        settings,
        EventLog(store, clock, EventSettings()),
        signer=ContractSigner(key),
        is_known=is_known,
        new_hold=lambda: f"{next(numbers):032x}",
    )
    running = asyncio.ensure_future(ledger.run())
    try:
        await ledger.ready()
        yield (
            ledger,
            RearContext.of(
                ledger,
                ProofVerifier(store, clock, key.cloud),
                provider=key.cloud,
                new_id=lambda: f"new-{next(numbers)}",
                domain="skerry.example",
                address="192.0.2.1",
            ),
        )
    finally:
        await cancel_and_wait([running])
        await store.close()


@pytest.fixture
async def market(cloud: pki.CertificateAuthority, provider: SigningKey) -> AsyncIterator[Market]:
    """A server with a market in which nothing is offered, for the user who runs it."""
    clock = ManualClock()
    with structlog.testing.capture_logs():
        async with (
            market_of(provider, clock, OPEN) as (ledger, rear),
            serving(cloud, rear=rear) as site,
        ):
            yield Market(site, await site.session(), ledger, rear, clock, provider)
