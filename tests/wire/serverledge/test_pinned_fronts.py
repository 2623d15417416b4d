"""Two fronts serve more than one, where there are cores for all: the server, the fronts and the clients are
each pinned to a core of their own. The call behind them does nothing, so that fronts are the bound."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.transport.http.front_metrics import FRONT_METRICS
from skerry.transport.http.front_pool import FrontPool
from tests.support.waiting import eventually
from tests.transport.http.conftest import serving
from tests.wire.serverledge.conftest import SETTINGS
from tests.wire.serverledge.fakes import Fakes

CORES = sorted(os.sched_getaffinity(0))
WRK = shutil.which("wrk")
SCRIPT = 'wrk.method = "POST"\nwrk.body = "{}"\n'
ROUNDS = 3

pytestmark = [
    pytest.mark.skipif(len(CORES) < 4, reason="two fronts, the server and the clients need four cores"),
    pytest.mark.skipif(WRK is None, reason="wrk makes the load"),
]


@pytest.fixture
def pinned() -> Iterator[None]:
    """The server has the first core, and writes no line for each request, as in production."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    os.sched_setaffinity(0, {CORES[0]})
    yield
    os.sched_setaffinity(0, CORES)
    structlog.configure(**before)


async def load(url: str, folder: Path) -> None:
    (folder / "call.lua").write_text(SCRIPT)
    client = await asyncio.create_subprocess_exec(
        *("taskset", "-c", str(CORES[-1])),
        *(WRK or "", "-t1", "-c32", "-d1s", "-s", str(folder / "call.lua"), f"{url}/invoke/isprime"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await client.wait() == 0


async def most_calls(authority: pki.CertificateAuthority, folder: Path, fronts: int) -> int:
    """Calls by so many fronts in the best of several rounds."""
    fakes = Fakes(ManualClock(), SETTINGS)
    fakes.invoker.is_direct = True
    fakes.functions.add("isprime")
    pool = FrontPool(fronts, keep_alive_s=60.0)
    async with serving(authority, functions=SETTINGS, serverledge=fakes.bundle, fronts=pool) as site:
        await load(site.url, folder)  # starts them
        await eventually(lambda: len(pool.pids) == fronts)
        for pid, core in zip(pool.pids, CORES[1:], strict=False):
            os.sched_setaffinity(pid, {core})
        most = 0
        for _ in range(ROUNDS):
            before = FRONT_METRICS.requests
            await load(site.url, folder)
            most = max(most, FRONT_METRICS.requests - before)
        return most


@pytest.mark.usefixtures("pinned")
async def test_two_fronts_serve_more_than_one(cloud: pki.CertificateAuthority, tmp_path: Path) -> None:
    one = await most_calls(cloud, tmp_path, 1)
    two = await most_calls(cloud, tmp_path, 2)
    assert two > one > 0
