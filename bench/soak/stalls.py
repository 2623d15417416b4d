"""Everything at once for ten minutes, and what the event loop of the server stalled on.

    python -m bench.soak stalls [--minutes 10] [--objects 1000]

One `skerry up` has thousands of objects of every kind. Clients call functions, warm, cold and async; start
and delete containers; create and change instances, services and jobs; make offers, holds and purchases; list
every kind; follow events and offers; take backups; scrape metrics and open the console. Each client pauses
between its requests, so that the processors are busy and not full: a queue is no stall.

The server itself reports its stalls (`skerry_loop_stall_seconds`, and the culprits in its log), without the
time for which it had no processor: other programs may use the machine. One of 50 ms and more is a violation.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvloop
from tests.support import functions, imagery
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

from bench.wires import Wire, wires

LONGEST_S = 0.05
_SMALL = {"cpu": 20, "memory": 16}
_NOWHERE = ["zone=nowhere"]
_FOLLOWERS = 10
_END_S = 120.0
_SHOWN_FAULTS = 5
_FILLERS = 32  # connections
_CHANGE_SHARE = 10  # of the objects of a kind that has fewer
_LISTS = (
    *("/instance/", "/workload/", "/node/", "/service/", "/job/", "/schedule/", "/secret/", "/config/"),
    *("/registry/", "/tls/", "/volume/", "/snapshot/", "/volume-operation/", "/backup/", "/mesh/", "/alert/"),
    *("/route/", "/namespace/", "/token/", "/certificate/", "/function", "/functions", "/status"),
    *("/neighbours", "/function-calls", "/api/listflavors", "/api/reservations", "/api/contracts"),
    *("/api/listflavours", "/api/v2/flavors", "/market", "/market/peers", "/market/offers", "/market/ledger"),
    *("/market/holds", "/market/contracts", "/market/buyers", "/market/borrowed", "/metrics"),
    *("/metrics/targets", "/openapi.json", "/instance/?limit=0", "/workload/?limit=0"),
)
_SELECTORS = (
    {"MoreThanCpu": 1, "Sort": "-memory"},
    {"MoreThanCpu": 40, "LessThanCpu": 41, "Location": "place-7"},
    {"Partition": {"Cpu": 1, "Memory": 1024}},
)


@dataclass
class Load:
    """What the clients share: the server, and counts of what was answered."""

    url: str
    image: str
    objects: int
    chance: random.Random
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    async def ask(self, wire: Wire, method: str, path: str, body: Any = None) -> Any:
        answer = await wire.ask(method, path, b"" if body is None else json.dumps(body).encode())
        self.answered[method] += 1
        return json.loads(answer) if answer[:1] in (b"{", b"[") else answer


def run(minutes: float = 10.0, objects: int = 1000) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="skerry-stalls-") as name:
        made = imagery.busybox(command=("sh", "-c", imagery.SLEEPS))
        image = f"oci-archive:{imagery.write_oci_archive(made, Path(name) / 'i.tar')}"
        flags = (
            "--set",
            "log.style=json",
            "--set",
            "log.level=warning",
            "--set",
            "functions.spare_workers=3",
        )
        with running(Path(name), *flags, start_new_session=True) as skerry:
            load = Load(skerry.ready["http"], image, objects, random.Random(1))
            uvloop.run(_fill(load))
            filled = len(_stalls(skerry.log))
            print(
                f"  {objects:,} objects of the large kinds are there; stalls meanwhile: {filled}", flush=True
            )
            before = _metric(skerry, "skerry_loop_stall_seconds_count")
            try:
                uvloop.run(_everything(load, minutes * 60))
                after = _metric(skerry, "skerry_loop_stall_seconds_count")
                collections = _metric(skerry, "skerry_gc_pause_seconds_count")
                collected = _metric(skerry, "skerry_gc_pause_seconds_sum")
                found = _stalls(skerry.log)[filled:]
                faults = [line for line in skerry.said().splitlines() if '"level": "error"' in line]
                print(f"  answered: {dict(load.answered)}; refused: {dict(load.refused)}", flush=True)
                print(
                    f"  {collections:.0f} full garbage collections, {collected * 1e3:.1f} ms together",
                    flush=True,
                )
                for line in faults[:_SHOWN_FAULTS]:
                    print(f"  the server logged: {line}", flush=True)
                return [*_judge(found, round(after - before)), *_idle_clients(load)]
            finally:
                _end_all(skerry)


def _judge(found: list[dict[str, Any]], counted: int) -> list[str]:
    by_culprit: dict[str, list[float]] = defaultdict(list)
    for stall in found:
        by_culprit[stall["culprit"]].append(stall["seconds"])
    print(f"  stalls of {LONGEST_S * 1e3:.0f} ms and more: {counted}", flush=True)
    for culprit, seconds in sorted(by_culprit.items(), key=lambda each: -max(each[1])):
        print(f"  {max(seconds) * 1e3:>8.0f} ms  {len(seconds):>4} times  {culprit}", flush=True)
        longest_of = max((stall for stall in found if stall["culprit"] == culprit), key=_seconds)
        print(f"              ran {longest_of['ran_s'] * 1e3:.0f} ms; {longest_of['stack']}", flush=True)
    longest = max((stall["seconds"] for stall in found), default=0.0)
    return [f"{counted} stalls of the event loop, the longest of {longest * 1e3:.0f} ms"] if counted else []


def _seconds(stall: Mapping[str, Any]) -> float:
    return float(stall["seconds"])


def _end_all(skerry: Skerry) -> None:
    """What runs, as a stopped Skerry leaves it running."""
    for kind in ("service", "job"):
        for each in skerry.call("GET", f"/{kind}/?limit=0")[1][f"{kind}s"]:
            skerry.call("DELETE", f"/{kind}/{each['name']}")
    for each in _placed(skerry):
        skerry.call("DELETE", f"/instance/{each['id']}")
    eventually_sync(lambda: not _placed(skerry), within=_END_S, what="no instance runs")
    containers = skerry.data / "containers" / "all"  # a stopped node leaves those that it had yet to remove
    eventually_sync(lambda: not any(containers.iterdir()), within=_END_S, what="no container is there")


def _placed(skerry: Skerry) -> list[dict[str, Any]]:
    """Instances that may have a container, of all pages."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = skerry.call("GET", f"/instance/?limit=0{cursor}")[1]
        found += (each for each in page["instances"] if each["constraints"] != _NOWHERE)
        if page["cursor"] is None:
            return found
        cursor = f"&cursor={page['cursor']}"


def _idle_clients(load: Load) -> list[str]:
    """A client that is never answered loads nothing."""
    return [
        f"{client.__name__.strip('_')}: nothing was answered; {load.refused[client.__name__]} errors"
        for client, _ in CLIENTS
        if not load.answered[client.__name__]
    ]


def _stalls(log: Path) -> list[dict[str, Any]]:
    lines = (line for line in log.read_text().splitlines() if '"loop.stalled"' in line)
    return [json.loads(line) for line in lines]


def _metric(skerry: Skerry, name: str) -> float:
    text = str(skerry.call("GET", "/metrics")[1])
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the server has no metric {name}")
    return float(found[1])


# What is there all the time


async def _fill(load: Load) -> None:
    many, some = load.objects, max(1, load.objects // _CHANGE_SHARE)
    nowhere = {"resources": _SMALL, "constraints": _NOWHERE}
    kinds: Mapping[str, tuple[int, Callable[[int], tuple[str, str, Any]]]] = {
        "instances": (
            many,
            lambda n: ("PUT", "/instance/", {"name": f"i{n}", "uri": load.image, **nowhere}),
        ),
        "workloads": (many, lambda n: ("PUT", "/workload/", {"name": f"w{n}", "uri": load.image})),
        "configs": (many, lambda n: ("PUT", f"/config/c{n}", {"text": f"value {n}"})),
        "offers": (many, lambda n: ("POST", "/market/flavors", _offer(n, load.chance))),
        "secrets": (some, lambda n: ("PUT", f"/secret/s{n}", {"text": f"value {n}"})),
        "namespaces": (some, lambda n: ("PUT", "/namespace/", {"name": f"n{n}"})),
        "tokens": (some, lambda n: ("POST", "/token/", {"role": "viewer", "note": f"t{n}"})),
        "functions": (some, lambda n: ("POST", "/create", functions.body(f"f{n}", functions.ECHO))),
        "schedules": (
            some,
            lambda n: (
                "PUT",
                "/schedule/",
                {"name": f"s{n}", "cron": "0 0 1 1 *", "function": {"name": "f0"}},
            ),
        ),
        "services": (
            some,
            lambda n: ("PUT", "/service/", {"name": f"s{n}", "image": load.image, "replicas": 0, **nowhere}),
        ),
        "jobs": (some, lambda n: ("PUT", "/job/", {"name": f"j{n}", "image": load.image, **nowhere})),
    }
    async with wires(load.url, _FILLERS) as connections:
        for count, request in kinds.values():
            left = iter(range(count))
            await asyncio.gather(*(_send(load, wire, left, request) for wire in connections))


async def _send(
    load: Load, wire: Wire, numbers: Iterator[int], request: Callable[[int], tuple[str, str, Any]]
) -> None:
    for number in numbers:
        await load.ask(wire, *request(number))


def _offer(number: int, chance: random.Random) -> dict[str, Any]:
    cores = chance.randint(2, 64)
    parts = {"cpu_min": 1, "cpu_step": 1, "memory_min": 1024, "memory_step": 1024} if number % 2 == 0 else {}
    return {
        "id": f"offer-{number}",
        "cpu": cores,
        "memory": cores * 1024,
        "price": f"0.{chance.randint(1, 999):03}",
        "currency": "EUR",
        "location": f"place-{number % 50}",
        **parts,
    }


# What the clients do, one after the other, until the end


async def _everything(load: Load, seconds: float) -> None:
    async with AsyncExitStack() as stack:
        clients = []
        for client, pause_s in CLIENTS:
            (wire,) = await stack.enter_async_context(wires(load.url, 1))
            clients.append(asyncio.create_task(_repeat(load, partial(client, load, wire), client, pause_s)))
        clients += [asyncio.create_task(_follow(load.url)) for _ in range(_FOLLOWERS)]
        began = time.monotonic()
        ended, _ = await asyncio.wait(clients, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in clients:
            each.cancel()
        await asyncio.wait(clients)
        for each in ended:
            each.result()
        print(f"  everything at once for {time.monotonic() - began:.0f} s", flush=True)


async def _repeat(
    load: Load, work: Callable[[], Awaitable[None]], client: Callable[..., Any], pause_s: float
) -> None:
    while True:
        try:
            await work()
            load.answered[client.__name__] += 1
        except (RuntimeError, TimeoutError) as error:
            load.refused[client.__name__] += 1
            if load.refused[client.__name__] <= 2:
                print(f"  {client.__name__.strip('_')}: {error}", flush=True)
        await asyncio.sleep(pause_s * load.chance.uniform(0.5, 1.5))


async def _warm_call(load: Load, wire: Wire) -> None:
    await load.ask(wire, "POST", "/invoke/f0", {"Params": {"n": next(load.numbers)}})


async def _async_call(load: Load, wire: Wire) -> None:
    accepted = await load.ask(wire, "POST", "/invoke/f1", {"Params": {}, "Async": True})
    for _ in range(200):
        with suppress(RuntimeError):  # 404 until it has ended
            if (await load.ask(wire, "GET", f"/poll/{accepted['ReqId']}"))["State"] == "done":
                return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"async call {accepted['ReqId']} does not end")


async def _cold_call(load: Load, wire: Wire) -> None:
    name = f"cold{next(load.numbers)}"
    await load.ask(wire, "POST", "/create", functions.body(name, functions.ECHO))
    await load.ask(wire, "POST", f"/invoke/{name}", {"Params": {}})
    await load.ask(wire, "POST", "/delete", {"Name": name})


async def _container(load: Load, wire: Wire) -> None:
    name = f"run{next(load.numbers)}"
    made = await load.ask(wire, "PUT", "/instance/", {"name": name, "uri": load.image, "resources": _SMALL})
    path = f"/instance/{made['id']}"
    try:
        await _until(load, wire, path, lambda answer: answer["status"] == "RUNNING")
        await load.ask(wire, "GET", f"{path}/events")
    finally:
        await load.ask(wire, "DELETE", path)


async def _service(load: Load, wire: Wire) -> None:
    name = f"web{next(load.numbers)}"
    body = {"name": name, "image": load.image, "replicas": 3, "resources": _SMALL}
    await load.ask(wire, "PUT", "/service/", body)
    await _until(load, wire, f"/service/{name}", lambda answer: answer["ready"] == 3)
    await load.ask(wire, "POST", f"/service/{name}/scale", {"replicas": 1})
    await load.ask(wire, "DELETE", f"/service/{name}")


async def _placement(load: Load, wire: Wire) -> None:
    """Instances that find no node: every one is considered, and again when resources are freed."""
    body = {"name": f"p{next(load.numbers)}", "uri": load.image, "resources": _SMALL, "constraints": _NOWHERE}
    made = await load.ask(wire, "PUT", "/instance/", body)
    await load.ask(wire, "GET", f"/instance/{made['id']}/explain")
    await load.ask(wire, "DELETE", f"/instance/{made['id']}")


async def _job(load: Load, wire: Wire) -> None:
    name = f"job{next(load.numbers)}"
    body = {"name": name, "image": load.image, "arguments": ["true"], "resources": _SMALL}
    await load.ask(wire, "PUT", "/job/", body)
    await _until(load, wire, f"/job/{name}", lambda answer: answer["status"] == "SUCCEEDED")
    await load.ask(wire, "DELETE", f"/job/{name}")


async def _objects(load: Load, wire: Wire) -> None:
    number = load.chance.randrange(load.objects)
    await load.ask(wire, "PUT", f"/config/c{number}", {"text": f"value {next(load.numbers)}"})
    await load.ask(wire, "PUT", f"/secret/s{number % (load.objects // _CHANGE_SHARE)}", {"text": "another"})


async def _hold(load: Load, wire: Wire) -> None:
    number = load.chance.randrange(load.objects // 2) * 2
    part = {"Cpu": 1, "Memory": 1024}
    held = await load.ask(
        wire, "POST", "/api/reserveflavor", {"FlavorID": f"offer-{number}", "Partition": part}
    )
    await load.ask(wire, "DELETE", f"/api/reservations/{held['TransactionID']}")


async def _search_offers(load: Load, wire: Wire) -> None:
    selector = {**load.chance.choice(_SELECTORS), "LessThanMemory": 10_000_000 + next(load.numbers)}
    await load.ask(wire, "POST", "/api/listflavors", {**selector, "Limit": load.chance.choice((100, 1000))})


async def _change_offers(load: Load, wire: Wire) -> None:
    id = f"brief-{next(load.numbers)}"
    await load.ask(wire, "POST", "/market/flavors", {**_offer(0, load.chance), "id": id})
    await load.ask(wire, "DELETE", f"/market/flavors/{id}")


async def _list(load: Load, wire: Wire) -> None:
    """Every kind; refusals of those that this server does not have are errors of the campaign."""
    for path in _LISTS:
        await load.ask(wire, "GET", path)
        await asyncio.sleep(0.02)


async def _console(load: Load, wire: Wire) -> None:
    await load.ask(wire, "GET", "/healthz")
    await load.ask(wire, "GET", "/metrics")


async def _backup(load: Load, wire: Wire) -> None:
    """The whole archive, which comes in chunks: on a connection of its own."""
    split = urlsplit(load.url)
    reader, writer = await asyncio.open_connection(split.hostname, split.port)
    try:
        writer.write(f"POST /backup/ HTTP/1.1\r\nHost: {split.netloc}\r\nConnection: close\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"backup: {head.decode()}")
        while await reader.read(1 << 16):
            pass
    finally:
        writer.close()


async def _until(load: Load, wire: Wire, path: str, condition: Callable[[Any], bool]) -> None:
    for _ in range(300):
        if condition(await load.ask(wire, "GET", path)):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"{path} does not get there")


async def _follow(url: str) -> None:
    """Read the stream of events, and throw it away."""
    split = urlsplit(url)
    reader, writer = await asyncio.open_connection(split.hostname, split.port)
    try:
        writer.write(f"GET /events HTTP/1.1\r\nHost: {split.netloc}\r\n\r\n".encode())
        while await reader.read(1 << 16):
            pass
        raise RuntimeError("the stream of events ended")
    finally:
        writer.close()


# With the pause between two turns.
CLIENTS: tuple[tuple[Callable[[Load, Wire], Awaitable[None]], float], ...] = (
    *[(_warm_call, 0.02)] * 4,
    *[(_container, 1.0)] * 2,
    *[(_placement, 0.1)] * 2,
    (_async_call, 0.2),
    (_cold_call, 0.5),
    (_service, 2.0),
    (_job, 2.0),
    (_objects, 0.1),
    (_hold, 0.05),
    (_search_offers, 0.05),
    (_change_offers, 0.2),
    (_list, 0.5),
    (_console, 1.0),
    (_backup, 20.0),
)
