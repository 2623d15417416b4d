"""The web console over a made-up cloud, served in a thread: the real pages, sessions and stream of changes,
on records that a test writes, with nobody who changes them.

For tests of what pages look like and weigh. It needs no root: nothing runs on the nodes of this cloud.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import socket
import tarfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from skerry.console import routes
from skerry.console.asset_catalog import AssetCatalog
from skerry.console.context import (
    ConsoleContext,
    FunctionCallsView,
    IdentityView,
    JobsView,
    MarketView,
)
from skerry.console.hub import ChangeHub
from skerry.console.network_map import NetworkMap
from skerry.console.rendering import Renderer
from skerry.console.statistics import SAMPLE_S, CallCounters, CallStatistics, FunctionCounters
from skerry.console.usage_history import STEP_S, STEPS, UsageHistory
from skerry.console.view_cache import ViewCache
from skerry.control.context import ControlPlane
from skerry.control.events.log import EventLog
from skerry.control.identity.authenticator import Authenticator
from skerry.functions.invocation.call_history import KEPT_CALLS, CallHistory
from skerry.functions.invocation.durations import DURATION_BOUNDS_S
from skerry.kit import pki
from skerry.kit.clock import ManualClock, SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.buyer.quotes import OfferSearchResult
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.functions import Function
from skerry.model.ids import CloudId, InstanceId, Namespace
from skerry.model.resources import Resources
from skerry.model.settings import Settings
from skerry.model.volumes import VolumeUsage
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import MAX_OPS, Put
from skerry.transport.access.gate import AccessGate, allowed_hosts
from skerry.transport.http.dispatcher import HttpDispatcher, ServedHosts
from skerry.transport.http.endpoints import RequestContext, StreamResponse
from skerry.transport.http.server import HttpServer
from skerry.transport.http.streaming import StreamFormat
from tests.support import console_market, console_records
from tests.support.clouds import following
from tests.support.console_records import LITTLE, Amount
from tests.support.controls import Control, control_on
from tests.support.waiting import PATIENCE_S

ADMIN = Caller(AuthMethod.LOOPBACK, "ann", Role.ADMIN)
_SOURCE = '''"""Sizes of pictures."""

from io import BytesIO


def handler(params, context):
    width = int(params.get("width", 320))
    print("resizing to", width)
    return {"width": width, "height": width * 3 // 4}
'''
_LINES = [
    f'{{"level": "info", "at": "12:04:{number % 60:02}", "path": "/cart/{number}"}}' for number in range(400)
]


class ConsoleSite:
    """A console that is served, and its records."""

    def __init__(self, number: int) -> None:
        self.amount = Amount(number, time.time())
        self.url = ""
        self._link = ""
        self._up = threading.Event()
        self._end: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: BaseException | None = None

    def link(self, caller: Caller = ADMIN) -> str:
        """A one-time link for this caller."""
        assert self._loop is not None
        made = asyncio.run_coroutine_threadsafe(
            self._identity.console_sessions.create_link(caller), self._loop
        )
        return f"{self.url}/console/login#{made.result(PATIENCE_S).code}"

    def paths(self) -> dict[str, str]:
        """Every page, by a name for its picture; pages of objects if there are any. Those that are the same
        however much there is are only there with a little."""
        found = {name or "overview": f"/console/{name}".rstrip("/") for name in _LISTS}
        amount = self.amount
        node = console_records.nodes(amount)[0].id
        found |= {f"node-{tab}": f"/console/nodes/{node}?tab={tab}" for tab in _NODE_TABS}
        if not amount.has_any:
            return found
        instance, service = console_records.instances(amount)[0], console_records.services(amount)[1]
        within = f"namespace={service.namespace}"
        here = f"/console/instances/{instance.id}?namespace={instance.namespace}"
        found |= {f"instance-{tab}": f"{here}&tab={tab}" for tab in ("logs", "metrics", "events", "explain")}
        there = f"/console/services/{service.name}?{within}"
        found |= {f"service-{tab}": f"{there}&tab={tab}" for tab in ("copies", "revisions", "events")}
        function = f"/console/functions/{console_records._FUNCTIONS[0]}"
        found |= {
            "workload": f"/console/workloads/worker?{within}",
            "function": f"{function}?{within}",
            "function-code": f"{function}/code?{within}",
            "function-versions": f"{function}?tab=versions&{within}",
            "function-logs": f"{function}?tab=logs&{within}",
            "job": f"/console/jobs/import-prices?{within}",
            "schedule": f"/console/schedules/nightly?{within}",
            "volume": f"/console/volumes/orders?{within}",
            "secret": f"/console/secrets/secret/database?{within}",
            "route": f"/console/routes/shop?{within}",
            "contract": "/console/market/contracts/01bought00000",
            "not-found": "/console/services/no-such-service",
        }
        return found if amount.number <= LITTLE else {k: v for k, v in found.items() if k not in _ALIKE}

    async def _serve(self, folder: Path) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with _running(folder, self.amount) as (server, identity):
            self._identity = identity
            host, port = server.address
            self.url = f"http://{host}:{port}"
            self._up.set()
            await self._end.wait()

    def _run(self, folder: Path) -> None:
        try:
            asyncio.run(self._serve(folder))
        except BaseException as error:  # noqa: BLE001 - it is raised in the test
            self._failure = error
            self._up.set()

    def start(self, folder: Path) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(folder,))
        thread.start()
        assert self._up.wait(PATIENCE_S)
        if self._failure is not None:
            raise self._failure
        return thread

    def stop(self, thread: threading.Thread) -> None:
        if self._loop is not None and self._end is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
        thread.join(PATIENCE_S)
        if self._failure is not None:
            raise self._failure


_LISTS = (
    "",
    "map",
    "services",
    "instances",
    "workloads",
    "functions",
    "jobs",
    "schedules",
    "volumes",
    "secrets",
    "routes",
    "nodes",
    "events",
    "tokens",
    "certificates",
    "market",
    "market/contracts",
    "market/holds",
    "market/ledger",
    "market/peers",
)
_ALIKE = (
    *("instance-logs", "instance-metrics", "instance-events", "service-revisions", "service-events"),
    *("function-code", "function-versions", "function-logs", "job", "schedule", "volume", "secret", "route"),
    *("contract", "not-found"),
)
_NODE_TABS = ("instances", "cells", "tree", "events")


@contextmanager
def console_of(number: int, folder: Path) -> Iterator[ConsoleSite]:
    """A console with so many objects of every kind, in a thread."""
    site = ConsoleSite(number)
    thread = site.start(folder)
    try:
        yield site
    finally:
        site.stop(thread)


@asynccontextmanager
async def _running(folder: Path, amount: Amount) -> AsyncIterator[tuple[HttpServer, Authenticator]]:
    clock, settings = SystemClock(), Settings()
    async with AsyncExitStack() as undo:
        store = MemoryStore(clock)
        undo.push_async_callback(store.close)
        written = [Put(key, value) for key, value in console_records.records(amount).items()]
        for start in range(0, len(written), MAX_OPS):
            await store.commit(written[start : start + MAX_OPS])
        events = EventLog(store, clock, settings.events)
        authority = pki.CertificateAuthority.load_or_create(folder / "pki", clock)
        identity = Authenticator(store, events, authority, clock, settings.identity)
        await undo.enter_async_context(following(identity))
        control = await undo.enter_async_context(control_on(store, events, clock))
        plane = ControlPlane(
            settings=settings,
            clock=clock,
            store=store,
            identity=identity,
            events=events,
            authority=authority,
            started_at=clock.now(),
            checks={},
            lacking=(),
        )
        beating = asyncio.ensure_future(_beat(control))
        undo.push_async_callback(cancel_and_wait, [beating])
        _receive(control)
        await control.nodes.heartbeats.publish()
        context = _context(plane, control, amount)
        app = HttpDispatcher(
            prefix_routes={},
            routes=routes.build_routes(context, settings.http),
            guard=AccessGate(identity, os.geteuid()),
            hosts=ServedHosts(allowed_hosts("127.0.0.1", ()), frozenset),
            settings=settings.http,
            clock=clock,
        )
        server = HttpServer(app, settings.http)
        await server.start(socket.create_server(("127.0.0.1", 0)), None)
        undo.push_async_callback(server.stop, 1.0)
        yield server, identity


def _receive(control: Control) -> None:
    for index, node in enumerate(sorted(control.nodes.list(), key=lambda one: one.registered_at)):
        if index != 3:  # which is silent
            control.nodes.heartbeats.received(node.id)


async def _beat(control: Control) -> None:
    """Nodes stay as they are while the test looks."""
    while True:
        _receive(control)
        await asyncio.sleep(1.0)


def _context(plane: ControlPlane, control: Control, amount: Amount) -> ConsoleContext:
    clock = plane.clock
    hub = ChangeHub(clock)
    numbers = {one.id: index for index, one in enumerate(console_records.instances(amount)) if one.node}
    used = {id: console_records.usage(index, STEPS) for id, index in numbers.items()}
    control.instances._reporter._usage.update(used)
    reports = control.volumes._reports._usage
    for index, volume in enumerate(console_records.volumes(amount)):
        whole = volume.size * 2**30
        reports[volume.id] = VolumeUsage(whole * (index * 17 % 90 + 5) // 100, whole)
    everything = console_records.functions(amount)

    async def list_cells(id: str) -> Sequence[Any]:
        return console_records.cells(amount)

    async def read_logs(
        call: RequestContext, id: str, namespace: Namespace | None, lines: int
    ) -> StreamResponse:
        async def parts() -> AsyncGenerator[bytes, None]:
            yield "\n".join(_LINES[: len(_LINES) if amount.number > LITTLE else 40]).encode() + b"\n"

        return StreamResponse(parts(), StreamFormat("text/plain"), AsyncExitStack())

    return ConsoleContext(
        plane=plane,
        renderer=Renderer(AssetCatalog(), hub.position),
        hub=hub,
        streams=ConsoleContext.stream_limit(),
        nodes=control.nodes,
        instances=control.instances,
        workloads=control.workloads,
        services=control.services,
        functions=cast(Any, _Functions(everything)),
        calls=_statistics(everything),
        history=_history(control, numbers, amount),
        function_calls=FunctionCallsView(
            cast(Any, None),
            cast(Any, None),
            lambda: cast(Any, SimpleNamespace(warm={one.name: 1 for one in everything[:3]})),
            _calls(everything, amount, clock.monotonic()),
            read_logs,
        ),
        jobs=JobsView(control.jobs, control.schedules),
        identity=IdentityView(control.tls, lambda text: text),
        overviews=ViewCache(hub, clock),
        market=MarketView(
            cast(Any, _Ledger(amount)), cast(Any, _Buyer(amount)), CloudId("key.seller"), cast(Any, None)
        ),
        read_logs=read_logs,
        volumes=control.volumes,
        secrets=control.secrets,
        routes=control.routes,
        problem_of_route=lambda route: "service mail has no ready copy" if route.name == "mail" else "",
        network_map=partial(_network_map, amount),
        open_terminal=cast(Any, None),
        list_cells=list_cells,
    )


class _Functions:
    """The registry of functions, as far as pages read it."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._functions = {one.name: one for one in functions}

    def all(self) -> list[Function]:
        return list(self._functions.values())

    def get(self, name: Any) -> Function | None:
        return self._functions.get(name)

    async def archive(self, digest: str) -> bytes:
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w") as archive:
            for name, text in (("main.py", _SOURCE), ("requirements.txt", "pillow==10.4.0\n")):
                member = tarfile.TarInfo(name)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
        return written.getvalue()


class _Ledger:
    """What this cloud sells."""

    def __init__(self, amount: Amount) -> None:
        self._amount = amount

    def now(self) -> float:
        return time.time()

    def contracts(self) -> Any:
        return console_market.sold(self._amount)

    def holds(self) -> Any:
        return console_market.holds(self._amount)

    def accounts(self) -> Any:
        return console_market.accounts(self._amount)

    def flavors(self) -> Any:
        return [one.flavor for one in self.accounts()]

    def audit(self) -> Mapping[Any, Any]:
        return {}


class _Buyer:
    """What this cloud buys."""

    def __init__(self, amount: Amount) -> None:
        self._amount = amount

    def peers(self) -> Any:
        return console_market.peers(self._amount)

    def borrowed(self) -> Any:
        return console_market.borrowed(self._amount)

    def get(self, id: str) -> Any:
        return next(one for one in self.borrowed() if one.id == id)

    async def offers(self, request: Any, *, own: bool = False) -> OfferSearchResult:
        return OfferSearchResult(console_market.offers(self._amount), console_market.failures(self._amount))


async def _network_map(amount: Amount) -> NetworkMap:
    return console_records.network_map(amount)


def _history(control: Control, numbers: Mapping[InstanceId, int], amount: Amount) -> UsageHistory:
    """An hour of usage."""
    clock = ManualClock(amount.now - STEPS * STEP_S)
    step, calls = 0, 0

    def usages() -> list[tuple[InstanceId, Resources]]:
        if step == STEPS:
            return list(control.instances.usages())
        return [(id, console_records.usage(index % 40, step)) for id, index in numbers.items()]

    history = UsageHistory(usages, lambda: calls, clock)
    # A thousand series of an hour would cost the test more than all pages.
    for step in range(0, STEPS, 1 if len(numbers) < 100 else 20):
        calls += round(200 + 80 * random.Random(step).random()) if amount.has_any else 0
        history.sample()
        clock.advance(STEP_S)
    step = STEPS
    return history


def _statistics(functions: Sequence[Function]) -> CallStatistics:
    clock, chance = ManualClock(), random.Random(3)
    counted = {
        str(one.name): FunctionCounters(0, 0, 0, (0,) * (len(DURATION_BOUNDS_S) + 1)) for one in functions
    }

    def counters() -> CallCounters:
        total = tuple(map(sum, zip(*(one.buckets for one in counted.values()), strict=True)))
        return CallCounters(dict(counted), DURATION_BOUNDS_S, total)

    statistics = CallStatistics(counters, clock)
    for _ in range(61):
        statistics.sample()
        clock.advance(SAMPLE_S)
        for name in list(counted)[:40]:
            before, buckets = counted[name], list(counted[name].buckets)
            new = chance.randrange(5, 60)
            buckets[len(buckets) // 3 + chance.randrange(4)] += new
            counted[name] = FunctionCounters(
                before.calls + new, before.failed + (new == 59), before.cold + (new > 57), tuple(buckets)
            )
    return statistics


def _calls(functions: Sequence[Function], amount: Amount, now: float) -> CallHistory:
    history, chance = CallHistory(), random.Random(5)
    for one in functions[:1]:
        kept = KEPT_CALLS if amount.number > LITTLE else 16
        for number in range(kept):
            start = 0.18 if number % 16 == 3 else 0.0
            queue, run = chance.random() * 0.01, 0.02 + chance.random() * 0.08
            row = (now - (kept - number) * 4, queue, start, run, queue + start + run + 0.004)
            history.of(one.name).add((*row, "HandlerError" if number % 19 == 7 else None, ""))
    return history
