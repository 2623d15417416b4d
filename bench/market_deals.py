"""Deals over HTTP: 64 kept connections, each making one hold and one purchase after the other, durably.

Once as buyers that the user of the machine names, and once as buyers that sign every request with a key of
their own, which the server checks and remembers. `/healthz` on the same connections is measured in the same
rounds, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import uvloop

from bench.figures import Figure
from bench.sellers import seller_wires
from bench.serving import percentile, skerry
from bench.wires import Wire
from skerry.kit.clock import SystemClock
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.request_proofs import RequestSigner
from skerry.model.ids import CloudId
from skerry.model.resources import MAX_AMOUNT

ROUNDS = 5
ROUND_S = 1.5
BUYERS = 64
FLAVOR = "bench"
RESERVE, PURCHASE = "/api/reserveflavor", "/api/purchaseflavor"
OFFER = {
    "FlavorID": FLAVOR,
    "Characteristics": {"Cpu": MAX_AMOUNT // 1000, "Memory": MAX_AMOUNT // 1000},
    "Price": {"Amount": "1000.00", "Currency": "EUR", "Period": "PT1H"},
    "Policy": {"Partitionable": {"CpuMin": 1, "MemoryMin": 1, "CpuStep": 1, "MemoryStep": 1}},
}

Ask = Callable[[str, str, bytes], Awaitable[bytes]]


def measure() -> Iterator[Figure]:
    with skerry(role="server") as ready:
        healthz, named, signed, times = uvloop.run(_rounds(ready["http"]))
    yield Figure(f"/healthz, {BUYERS} connections", healthz, "answers/s")
    yield Figure(
        f"{BUYERS} named buyers over HTTP",
        named,
        "durable pairs/s",
        at_least=500,
        peer=healthz,
        peer_unit="answers/s",
        peer_name="/healthz",
    )
    yield Figure(f"{BUYERS} buyers with keys over HTTP", signed, "durable pairs/s")
    yield Figure("one pair of a named buyer: p50", percentile(times, 0.5) * 1e3, "ms")
    yield Figure("the same: p99", percentile(times, 0.99) * 1e3, "ms")


async def _rounds(url: str) -> tuple[float, float, float, list[float]]:
    times: list[float] = []
    async with seller_wires(url, BUYERS) as connections:
        offered = json.loads(await connections[0].ask("POST", "/api/flavors", json.dumps(OFFER).encode()))
        provider = CloudId(offered["ProviderID"])
        named = [_named(wire, number) for number, wire in enumerate(connections)]
        keys = [SigningKey.generate() for _ in connections]
        for key in keys:
            await connections[0].ask("PUT", f"/market/buyers/{key.cloud}", b"{}")
        signed = [_signed(wire, provider, key) for wire, key in zip(connections, keys, strict=True)]
        rates = [
            (
                await _round([_look(wire) for wire in connections], []),
                await _round(named, times),
                await _round(signed, []),
            )
            for _ in range(ROUNDS)
        ]
    healthz, plain, proven = (statistics.median(column) for column in zip(*rates, strict=True))
    return healthz, plain, proven, times


async def _round(works: list[Callable[[], Awaitable[None]]], times: list[float]) -> float:
    """How often a second all of them together got their work done."""
    started = time.perf_counter()
    done = 0

    async def repeat(work: Callable[[], Awaitable[None]]) -> None:
        nonlocal done
        while (begun := time.perf_counter()) - started < ROUND_S:
            await work()
            times.append(time.perf_counter() - begun)
            done += 1

    await asyncio.gather(*map(repeat, works))
    return done / (time.perf_counter() - started)


def _look(wire: Wire) -> Callable[[], Awaitable[None]]:
    async def look() -> None:
        await wire.ask("GET", "/healthz")

    return look


def _named(wire: Wire, number: int) -> Callable[[], Awaitable[None]]:
    return _deal(wire.ask, {"Buyer": {"NodeID": f"buyer-{number}"}})


def _signed(wire: Wire, provider: CloudId, key: SigningKey) -> Callable[[], Awaitable[None]]:
    prover = RequestSigner(key, SystemClock())

    async def ask(method: str, target: str, body: bytes) -> bytes:
        return await wire.ask(method, target, body, prover.header(provider, method, target, body))

    return _deal(ask, {})


def _deal(ask: Ask, more: dict[str, Any]) -> Callable[[], Awaitable[None]]:
    body = json.dumps({"FlavorID": FLAVOR, "Partition": {"Cpu": 1, "Memory": 1}, **more}).encode()

    async def deal() -> None:
        held = json.loads(await ask("POST", RESERVE, body))
        await ask("POST", PURCHASE, b'{"TransactionID":"%s"}' % held["TransactionID"].encode())

    return deal
