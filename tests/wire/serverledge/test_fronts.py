"""Connections at a front: the same bytes as at the server, whoever calls; and what is left when one dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.model.callers import Role
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallResult
from skerry.model.settings import HttpSettings
from skerry.transport.http.front_metrics import FRONT_METRICS
from skerry.transport.http.front_pool import FrontPool
from skerry.transport.http.metrics import HTTP_METRICS
from tests.support.fronts import assign, task_fronts
from tests.support.waiting import eventually, eventually_sync
from tests.transport.http.conftest import StrangerGate, serving
from tests.transport.http.talking import Wire, get, post
from tests.wire.serverledge.conftest import SETTINGS, Serverledge
from tests.wire.serverledge.fakes import DONE, FakeInvoker, Fakes, failed

CALL = post("/invoke/isprime", b'{"Params":{"n":17}}')
NAMED = post("/invoke/isprime", b'{"Params":{"n":17}}', "X-Request-Id: mine-7")


@pytest.fixture
def is_direct() -> bool:
    return True


@pytest.fixture
def fronts() -> FrontPool:
    return task_fronts()


@pytest.fixture
def invoker(ledge: Serverledge) -> FakeInvoker:
    return ledge.fakes.invoker


async def raw_answer(wire: Wire) -> bytes:
    """The next answer as it was sent, but for its date."""
    head = await wire.reader.readuntil(b"\r\n\r\n")
    size = re.search(rb"content-length: (\d+)", head)
    assert size is not None
    return re.sub(rb"date: [^\r]*", b"date: now", head) + await wire.reader.readexactly(int(size[1]))


async def test_answers_are_the_same_bytes_as_without_a_front(
    ledge: Serverledge, cloud: pki.CertificateAuthority
) -> None:
    def echo(ask: CallRequest) -> CallReport:
        return (
            failed(CallResult(0.1, failure=CallFailure.HANDLER, error="x"))(ask)
            if b"18" in ask.params
            else DONE
        )

    ledge.fakes.invoker.report = echo
    bodies = [
        b'{"Params":{"n":17}}',
        b"",
        b"{",
        b'{"Params":{"n":18}}',
        b'{"Params":{"n":"' + b"9" * 900 + b'"}}',
    ]
    calls = [post("/invoke/isprime", body, "X-Request-Id: mine-7") for body in bodies]
    at_front = await ledge.site.wire()
    await assign(at_front, NAMED)
    before = FRONT_METRICS.requests
    answers = []
    for call in calls:
        await at_front.send(call)
        answers.append(await raw_answer(at_front))
    assert FRONT_METRICS.requests == before + len(calls)
    async with serving(cloud, functions=SETTINGS, serverledge=ledge.fakes.bundle) as plain:
        at_server = await plain.wire()
        for call, answer in zip(calls, answers, strict=True):
            await at_server.send(call)
            assert await raw_answer(at_server) == answer


async def test_other_requests_on_a_assigned_connection_are_the_servers(ledge: Serverledge) -> None:
    wire = await ledge.site.wire()
    await assign(wire, CALL)
    returns = FRONT_METRICS.returns
    await wire.send(get("/healthz"))
    assert (await wire.answer()).status == 200
    assert (FRONT_METRICS.returns, FRONT_METRICS.assigned) == (returns + 1, 0)
    await wire.send(get("/nothing"))
    assert (await wire.answer()).status == 404
    await assign(wire, CALL)  # its calls are at a front again
    await wire.send(b"HELLO\r\n\r\n")
    assert (await wire.answer()).status == 400
    assert await wire.rest() == b""


async def test_a_call_that_the_server_declines_is_served_once(
    ledge: Serverledge, invoker: FakeInvoker
) -> None:
    wire = await ledge.site.wire()
    await assign(wire, CALL)
    invoker.asked.clear()
    invoker.is_direct = False
    await wire.send(CALL)
    assert (await wire.answer()).status == 200
    assert len(invoker.asked) == 1
    await eventually(lambda: FRONT_METRICS.assigned == 0)


async def test_calls_are_counted_once(ledge: Serverledge, invoker: FakeInvoker) -> None:
    wire = await ledge.site.wire()
    await assign(wire, CALL)
    key = ("/invoke/{function}", "POST", 200)
    assert key in HTTP_METRICS._series
    counted, asked = HTTP_METRICS._series[key].count, len(invoker.asked)
    for _ in range(10):
        await wire.send(CALL)
        await wire.answer()
    assert (HTTP_METRICS._series[key].count, len(invoker.asked)) == (counted + 10, asked + 10)
    assert HTTP_METRICS.in_flight == 0


async def test_a_stranger_at_the_same_front_has_no_rights_of_others(cloud: pki.CertificateAuthority) -> None:
    fakes = Fakes(ManualClock(), SETTINGS)
    fakes.invoker.is_direct = True
    fakes.functions.add("isprime")
    async with serving(
        cloud, functions=SETTINGS, serverledge=fakes.bundle, gate=StrangerGate, fronts=task_fronts()
    ) as site:
        allowed, stranger = await site.wire(), await site.wire()
        bearer = await site.bearer(Role.INVOKER)
        call = post("/invoke/isprime", b"{}", f"Authorization: {bearer['Authorization']}")
        await assign(allowed, call)
        await assign(stranger, CALL)  # which is refused each time, and as directly
        asked = len(fakes.invoker.asked)
        for _ in range(3):
            await stranger.send(CALL)
            assert (await stranger.answer()).status == 401
            await allowed.send(call)
            assert (await allowed.answer()).status == 200
        assert len(fakes.invoker.asked) == asked + 3
        await stranger.send(call.replace(b"Bearer ", b"Bearer x"))
        assert (await stranger.answer()).status == 401


async def test_an_idle_connection_is_closed_by_its_front(
    ledge: Serverledge, cloud: pki.CertificateAuthority
) -> None:
    async with serving(
        cloud, functions=SETTINGS, serverledge=ledge.fakes.bundle, fronts=task_fronts(keep_alive_s=0.2)
    ) as site:
        wire = await site.wire()
        await assign(wire, CALL)
        assert await wire.rest() == b""
        await eventually(lambda: not site.server._state.connections)


async def test_assigned_connections_count_against_the_limit(
    ledge: Serverledge, cloud: pki.CertificateAuthority
) -> None:
    limits = HttpSettings(max_connections=2, max_connections_per_source=2)
    async with serving(
        cloud, functions=SETTINGS, serverledge=ledge.fakes.bundle, fronts=task_fronts(), http=limits
    ) as site:
        ledge.fakes.invoker.holds = False
        wires = [await site.wire() for _ in range(2)]
        for wire in wires:
            await assign(wire, CALL)
        ledge.fakes.invoker.holds = True
        for wire in wires:
            await wire.send(CALL)
        await eventually(lambda: len(ledge.fakes.invoker.held) == 2)
        third = await site.wire()
        await third.send(CALL)
        assert (await third.answer()).status == 503
        for call in ledge.fakes.invoker.held:
            call.end()
        assert [(await wire.answer()).status for wire in wires] == [200, 200]


async def test_a_large_body_is_read_by_the_server(ledge: Serverledge) -> None:
    wire = await ledge.site.wire()
    await assign(wire, CALL)
    await wire.send(post("/invoke/isprime", b" " * 70_000))
    assert (await wire.answer()).status == 413
    assert FRONT_METRICS.assigned == 0


async def test_a_client_that_does_not_read_gets_all_of_its_answer_later(
    ledge: Serverledge, invoker: FakeInvoker
) -> None:
    wire = await ledge.site.wire()
    await assign(wire, CALL)
    large = b'"' + b"x" * 8_000_000 + b'"'
    report = msgspec.structs.replace(DONE, answer=CallResult(0.1, large))
    invoker.report = lambda ask: report if b"large" in ask.params else DONE
    await wire.send(post("/invoke/isprime", b'{"Params":{"n":"large"}}'))
    await wire.send(get("/healthz"))
    assert len((await wire.answer()).body) > len(large)
    assert (await wire.answer()).status == 200


async def test_clients_of_a_server_that_retires_are_told_to_connect_anew(ledge: Serverledge) -> None:
    wire = await ledge.site.wire()
    await assign(wire, CALL)
    assert ledge.site.server.retire() == []
    await wire.send(CALL)
    assert (await wire.answer()).headers["connection"] == "close"
    assert await wire.rest() == b""


async def test_a_front_that_dies_takes_its_connections_and_nothing_else(
    ledge: Serverledge, cloud: pki.CertificateAuthority
) -> None:
    invoker, pool = ledge.fakes.invoker, FrontPool(1, keep_alive_s=60.0)
    async with serving(cloud, functions=SETTINGS, serverledge=ledge.fakes.bundle, fronts=pool) as site:
        wire, idle = await site.wire(), await site.wire()
        await assign(wire, CALL)
        await assign(idle, CALL)
        invoker.holds = True
        await wire.send(CALL)
        await eventually(lambda: invoker.held)
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        assert (await wire.rest(), await idle.rest()) == (b"", b"")
        await eventually(lambda: not site.server._state.connections)
        assert FRONT_METRICS.assigned == 0
        invoker.held[0].end()  # for nobody
        assert HTTP_METRICS.in_flight == 0
        invoker.holds = False
        again = await site.wire()
        await again.send(CALL)
        assert (await again.answer()).status == 200  # by the server itself meanwhile
        await eventually(lambda: pool.pids and pid not in pool.pids)
        await assign(again, CALL)


def test_a_front_ends_with_its_server() -> None:
    program = textwrap.dedent(
        """
        import asyncio, socket
        from skerry.transport.http.front_pool import FrontPool
        async def main():
            pool = FrontPool(1, keep_alive_s=60.0)
            while not pool.has_fronts():
                await asyncio.sleep(0.01)
            print('PID', *pool.pids, flush=True)
            await asyncio.sleep(600)
        asyncio.run(main())
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        front = next(int(line.split()[1]) for line in server.stdout if line.startswith("PID"))
        assert Path(f"/proc/{front}").exists()
        server.kill()
        server.wait()
        eventually_sync(lambda: not _runs(front))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
