"""LIST_FLAVORS over 100,000 flavors, against `/healthz` on the same connection in the same rounds.

Flavors of all sizes, prices, places and policies are put into the store before the server starts. Narrow
selectors and broad ones, in every order; pages one behind the other; and the same while the offers change. No
two selectors are the same, because the server keeps what it answered until an offer changes; what a poll that
asks the same again costs is told as well.

A time is that from the request to its answer, without that for which the server's or the client's thread
waited for a processor, by the kernel's count: other programs may use the machine, and a p99 of 400 requests
is made by four of them. The p99 with that time is in the note.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench.figures import Figure
from bench.sellers import seller_wires
from bench.serving import percentile, skerry
from bench.wires import Wire, wires
from skerry.kit import json_codec
from skerry.kit.clock import SystemClock
from skerry.market.provider.ledger.records import OfferRecord, offer_key
from skerry.model.ids import CloudId, OfferId
from skerry.model.market import Aggregation, Offer, Partition, Price
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.store.protocol import MAX_OPS, Op, Put
from skerry.store.sqlite.store import SqliteStore

FLAVORS = 100_000
ROUNDS = 5
PER_ROUND = 400
LIST = "/api/listflavors"
LONG = "LIST, nearly all, 1,000 in one answer"
AGAIN = "LIST, the same again"
PAGES = "LIST without a selector, page by page"
TOLD = ("/healthz", LONG, PAGES)  # and not promised
PART = {"Cpu": 2, "Memory": 4096}
SELECTORS: dict[str, dict[str, Any]] = {
    "narrow": {"MoreThanCpu": 40, "LessThanCpu": 41, "Location": "place-7", "Partition": PART},
    "a quarter of all": {"MoreThanCpu": 48},
    "nearly all": {"MoreThanCpu": 1},
    "nearly all, the largest first": {"MoreThanCpu": 1, "Sort": "-memory"},
    "a part of half of all, the cheapest for it": {"Partition": PART},
    "a part that few have": {"Partition": {"Cpu": 60, "Memory": 4096}},
    "within a price": {"Partition": PART, "MaxPrice": {"Amount": "0.5", "Currency": "EUR"}},
}
_SAME = json.dumps(SELECTORS["nearly all"]).encode()
MOST = 10  # times the p50 of /healthz


class Taken(NamedTuple):
    """Of one request."""

    own_s: float  # without waiting for a processor
    all_s: float


Times = dict[str, list[Taken]]


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="skerry-market-") as name:
        folder = Path(name)
        with skerry(role="server", data=folder) as ready:
            cloud = uvloop.run(_whose(ready["http"]))
        uvloop.run(_fill(folder, cloud))
        with skerry(role="server", data=folder) as ready:
            rounds = uvloop.run(_rounds(ready["http"], int(ready["pid"])))
    # Of several rounds the quietest counts, by what `/healthz` itself did: others may use the machine too.
    times = min(rounds, key=lambda times: percentile(_own(times["/healthz"]), 0.99))
    healthz = percentile(_own(times["/healthz"]), 0.5)
    yield Figure("/healthz, one after the other: p50", healthz * 1e6, "us")
    for name, taken in times.items():
        p50, with_waits = percentile(_own(taken), 0.5), percentile([each.all_s for each in taken], 0.99)
        yield Figure(
            f"{name}: p99",
            percentile(_own(taken), 0.99) / healthz,
            "x /healthz p50",
            at_most=None if name in TOLD else MOST,
            note=f"p50: {p50 / healthz:.1f}; p99 with waits for a processor: {with_waits / healthz:.1f}",
            peer=healthz * 1e6,
            peer_unit="us",
            peer_name="/healthz p50",
        )


def _own(taken: list[Taken]) -> list[float]:
    return [each.own_s for each in taken]


async def _rounds(url: str, pid: int) -> list[Times]:
    waits = Waits(pid, os.getpid())
    try:
        async with seller_wires(url, 2) as (wire, other):
            await _round(wire, other, waits)  # it warms up
            return [await _round(wire, other, waits) for _ in range(ROUNDS)]
    finally:
        waits.close()


class Waits:
    """For how long the main threads of processes waited for a processor, since they began."""

    def __init__(self, *pids: int) -> None:
        self._files = [os.open(f"/proc/{pid}/task/{pid}/schedstat", os.O_RDONLY) for pid in pids]

    def seconds(self) -> float:
        return sum(int(os.pread(file, 128, 0).split()[1]) for file in self._files) / 1e9

    def close(self) -> None:
        for file in self._files:
            os.close(file)


async def _round(wire: Wire, other: Wire, waits: Waits) -> Times:
    times: Times = {}

    async def timed(name: str, method: str, path: str, body: bytes = b"") -> bytes:
        waited, begun = waits.seconds(), time.perf_counter()
        answer = await wire.ask(method, path, body)
        taken = time.perf_counter() - begun
        own = max(0.0, taken - (waits.seconds() - waited))
        times.setdefault(name, []).append(Taken(own, taken))
        return answer

    following = ""
    for _ in range(PER_ROUND):
        await timed("/healthz", "GET", "/healthz")
        page = await timed(PAGES, "GET", f"{LIST}?continue={following}")
        # Not parsed: what that leaves behind would be cleared away while the next answer is awaited.
        following = page.rpartition(b'"Continue":"')[2].rstrip(b'"}').decode()
        for name in SELECTORS:
            await timed(f"LIST, {name}", "POST", LIST, _another(name))
        await timed(AGAIN, "POST", LIST, _SAME)
        if len(times[AGAIN]) % 10 == 0:
            await timed(LONG, "POST", LIST, _another("nearly all", Limit=1000))
    changing = asyncio.ensure_future(_change(other))
    for _ in range(PER_ROUND):
        await timed("/healthz", "GET", "/healthz")
        for name in ("narrow", "nearly all"):
            await timed(f"LIST, {name}, while offers change", "POST", LIST, _another(name))
    changing.cancel()
    await asyncio.wait([changing])
    return times


_numbers = itertools.count(10_000_000)


def _another(name: str, **more: Any) -> bytes:
    """Finds the same, and was never asked before."""
    return json.dumps({**SELECTORS[name], "LessThanMemory": next(_numbers), **more}).encode()


async def _change(wire: Wire) -> None:
    """Hold a part of one flavor after the other, and give it up again."""
    chance = random.Random(2)
    while True:
        body = json.dumps({"FlavorID": f"flavor-{chance.randrange(FLAVORS // 2) * 2}", "Partition": PART})
        held = json.loads(await wire.ask("POST", "/api/reserveflavor", body.encode()))
        await wire.ask("DELETE", f"/api/reservations/{held['TransactionID']}")
        await asyncio.sleep(0.001)


async def _whose(url: str) -> CloudId:
    """The cloud that serves there."""
    async with wires(url, 1) as (wire,):
        market = json.loads(await wire.ask("GET", "/market"))
    return CloudId(market["cloud"])


async def _fill(folder: Path, cloud: CloudId) -> None:
    """Write the flavors as the ledger would."""
    store = await SqliteStore.open(folder / "store.db", SystemClock(), history=1)
    try:
        chance = random.Random(1)
        flavors = [_flavor(number, cloud, chance) for number in range(FLAVORS)]
        for start in range(0, FLAVORS, MAX_OPS):
            ops: list[Op] = [
                Put(
                    offer_key(flavor.id), json_codec.encode(OfferRecord(flavor=flavor, capacity=flavor.whole))
                )
                for flavor in flavors[start : start + MAX_OPS]
            ]
            await store.commit(ops)
    finally:
        await store.close()


def _flavor(number: int, cloud: CloudId, chance: random.Random) -> Offer:
    cores = chance.randint(2, 64)
    step = Resources(Millicores(1000), Megabytes(1024))
    is_divided = number % 2 == 0
    return Offer(
        id=OfferId(f"flavor-{number}"),
        provider=cloud,
        kind="k8slice",
        resources=Resources(
            Millicores(cores * 1000), Megabytes(cores * 4096), Gigabytes(chance.choice((0, 100)))
        ),
        price=Price(Decimal(chance.randint(1, 10_000)) / 1000, chance.choice(("EUR", "EUR", "USD")), "PT1H"),
        created_at=0.0,
        architecture=chance.choice(("amd64", "arm64")),
        partition=Partition(least=step, step=step) if is_divided else None,
        aggregation=Aggregation(1, 4) if number % 4 == 1 else None,
        stock=1 if is_divided else 4,
        location=f"place-{chance.randrange(50)}",
    )
