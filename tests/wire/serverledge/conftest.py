"""What the tests of this room share: the real server over functions that nobody runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import structlog

from skerry.kit import pki
from skerry.kit.clock import ManualClock, SystemClock
from skerry.model.settings import FunctionSettings
from skerry.transport.http.front_pool import FrontPool
from tests.transport.http.conftest import Site, serving
from tests.transport.http.talking import Answer
from tests.wire.serverledge.fakes import Fakes

# Small, so that tests can pass them.
SETTINGS = FunctionSettings(max_params_bytes=4096, max_code_bytes=3000)


@dataclass
class Serverledge:
    """One caller, the user who runs the server, and what is behind it."""

    site: Site
    session: aiohttp.ClientSession
    fakes: Fakes
    clock: ManualClock

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.ask("GET", path, **options)

    async def post(self, path: str, body: bytes = b"", **options: Any) -> Answer:
        return await self.ask("POST", path, data=body, **options)

    async def ask(self, method: str, path: str, **options: Any) -> Answer:
        async with self.session.request(method, path, skip_auto_headers=["Content-Type"], **options) as reply:
            headers = {name.lower(): value for name, value in reply.headers.items()}
            return Answer(reply.status, headers, await reply.read())


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> pki.CertificateAuthority:
    return pki.CertificateAuthority.load_or_create(tmp_path_factory.mktemp("pki"), SystemClock())


@pytest.fixture
def is_direct() -> bool:
    """Whether calls without a task are possible; files about calls try both."""
    return False


@pytest.fixture
def fronts() -> FrontPool | None:
    """What the connections of direct calls are assigned to."""
    return None


@pytest.fixture
async def ledge(
    cloud: pki.CertificateAuthority, is_direct: bool, fronts: FrontPool | None
) -> AsyncIterator[Serverledge]:
    """A server with the function `isprime`, for a caller who is an admin."""
    clock = ManualClock()
    fakes = Fakes(clock, SETTINGS)
    fakes.invoker.is_direct = is_direct
    fakes.functions.add("isprime")
    with structlog.testing.capture_logs():
        async with serving(cloud, functions=SETTINGS, serverledge=fakes.bundle, fronts=fronts) as site:
            yield Serverledge(site, await site.session(), fakes, clock)
