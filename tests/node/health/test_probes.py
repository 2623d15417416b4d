"""Checks against real servers: good, slow, silent, huge and broken ones, and those that are not there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpclib.health.check import ServiceStatus
from grpclib.health.service import OVERALL, Health
from grpclib.server import Server

from skerry.model import errors
from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.model.workloads import MetricSource
from skerry.node.health.decisions import CheckResult
from skerry.node.health.probes import MAX_METRICS_PAGE, ContainerProbes
from tests.node.health import servers
from tests.node.health.servers import NAME, LocalContainers, answering, closed_port, serving


def check(method: str, port: int, **more: Any) -> HealthCheck:
    more.setdefault("timeout_s", 5.0)
    return HealthCheck(CheckRole.READINESS, CheckMethod(method), port, **more)


async def run_check(probes: ContainerProbes, wanted: HealthCheck) -> CheckResult:
    done: asyncio.Future[CheckResult | None] = asyncio.get_running_loop().create_future()
    probes.begin(NAME, wanted, done.set_result)
    assert not done.done(), "nobody is called back before the probe is known"
    result = await done
    assert result is not None
    return result


async def found(wanted: HealthCheck, address: str = "127.0.0.1") -> str:
    """Why `wanted` has not passed; empty: it has. Every socket is closed, whatever it found."""
    containers = LocalContainers(address)
    result = await run_check(ContainerProbes(containers), wanted)
    assert all(each.fileno() == -1 for each in containers.opened)
    assert bool(result.message) is not result.has_passed
    return result.message


@pytest.mark.parametrize("status", [200, 204, 301, 399])
async def test_http_passes_from_200_to_399_and_follows_no_redirect(status: int) -> None:
    answer = f"HTTP/1.1 {status} Fine\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n".encode()
    async with serving(answering(answer)) as port:
        assert await found(check("http", port)) == ""


@pytest.mark.parametrize("status", [400, 404, 500, 503])
async def test_http_fails_with_the_status(status: int) -> None:
    async with serving(answering(f"HTTP/1.1 {status} No\r\n\r\n".encode())) as port:
        assert await found(check("http", port)) == f"HTTP {status}"


async def test_http_asks_for_the_path_and_says_who_it_is() -> None:
    asked = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await servers.hang()  # and keeps the connection

    async with serving(handle) as port:
        assert await found(check("http", port, path="/health?deep=1")) == ""
    [request] = asked
    assert request.startswith(b"GET /health?deep=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"Connection: close" in request


async def test_an_answer_in_chunks_or_without_an_end_passes() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    async with serving(answering(chunked, then=servers.hang)) as port:
        assert await found(check("http", port)) == ""
    async with serving(servers.flood) as port:
        assert await found(check("http", port)) == ""


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "it closed the connection without an answer"),
        (b"HTTP/1.1 200", "it closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH\r\n", "its answer is not HTTP"),
        (b"\x00\xff" * 100, "its answer is not HTTP"),
    ],
)
async def test_what_is_no_http_fails(answer: bytes, why: str) -> None:
    async with serving(answering(answer)) as port:
        assert await found(check("http", port)) == why


async def test_headers_without_an_end_fail() -> None:
    async with serving(servers.flood_headers) as port:
        assert await found(check("http", port)) in (
            "its answer has more than 64 KiB of headers",
            "its answer is not HTTP",
        )


@pytest.mark.parametrize("method", ["http", "grpc"])
async def test_a_server_that_says_nothing_fails_after_the_timeout(method: str) -> None:
    async with serving(servers.say_nothing) as port:
        assert await found(check(method, port, timeout_s=0.1)) == "no answer within 0.1 s"


async def test_a_server_that_answers_by_halves_fails_after_the_timeout() -> None:
    async with serving(answering(b"HTTP/1.1 20", then=servers.hang)) as port:
        assert await found(check("http", port, timeout_s=0.1)) == "no answer within 0.1 s"


@pytest.mark.parametrize("method", ["http", "tcp", "grpc"])
async def test_a_port_that_nobody_listens_on_fails(method: str) -> None:
    assert await found(check(method, closed_port())) == "connection refused"


async def test_tcp_passes_with_the_connection_alone() -> None:
    async with serving(servers.say_nothing) as port:
        assert await found(check("tcp", port)) == ""


async def test_who_listens_on_loopback_alone_is_found_there() -> None:
    async with serving(answering(b"HTTP/1.1 200 OK\r\n\r\n")) as port:
        assert await found(check("http", port), address="127.0.0.2") == ""  # refuses
        assert await found(check("tcp", port), address="") == ""


@contextlib.asynccontextmanager
async def health_server(*, serves: bool, service: str = "") -> AsyncIterator[int]:
    status = ServiceStatus()
    status.set(serves)

    class Named:
        def __mapping__(self) -> dict[str, Any]:
            return {f"/{service}/Call": None}

    health = Health({OVERALL: [status]} | ({Named(): [status]} if service else {}))
    server = Server([health])
    await server.start("127.0.0.1", 0)
    assert server._server is not None
    try:
        yield server._server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def test_grpc_passes_if_it_serves() -> None:
    async with health_server(serves=True) as port:
        assert await found(check("grpc", port)) == ""
    async with health_server(serves=False) as port:
        assert await found(check("grpc", port)) == "NOT_SERVING"


async def test_grpc_asks_for_a_service_by_its_name() -> None:
    name = "skerry.test." + "S" * 200
    async with health_server(serves=True, service=name) as port:
        assert await found(check("grpc", port, service=name)) == ""
        assert await found(check("grpc", port, service="other")) == "it does not know that service"


async def test_grpc_of_a_server_without_health_says_so() -> None:
    server = Server([])
    await server.start("127.0.0.1", 0)
    assert server._server is not None
    try:
        port = server._server.sockets[0].getsockname()[1]
        assert await found(check("grpc", port)) == "it does not offer grpc.health.v1"
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad\r\n\r\n", b"\x00" * 1000, b""])
async def test_what_is_no_http2_fails(answer: bytes) -> None:
    async with serving(answering(answer)) as port:
        assert await found(check("grpc", port)) in (
            "its answer is not HTTP/2",
            "it closed the connection without an answer",
            "connection reset by peer",
        )


async def metric(page: bytes, head: bytes = b"HTTP/1.1 200 OK\r\n\r\n") -> float | None:
    async with serving(answering(head + page)) as port:
        return await read_metric(MetricSource("in_flight", port))


async def read_metric(source: MetricSource) -> float | None:
    done: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
    ContainerProbes(LocalContainers()).begin_metric(NAME, source, done.set_result)
    return await done


async def test_a_metric_is_read_and_of_several_series_the_sum_counts() -> None:
    assert await metric(b'in_flight{a="1"} 2\nin_flight{a="2"} 3\nother 9\n') == 5.0


async def test_a_metric_that_is_not_there_is_none() -> None:
    assert await metric(b"other 1\n") is None
    assert await metric(b"in_flight 1\n", b"HTTP/1.1 404 No\r\n\r\n") is None
    assert await metric(b"", b"garbage\r\n") is None
    assert await read_metric(MetricSource("in_flight", closed_port())) is None


async def test_a_page_of_metrics_that_is_too_large_is_none() -> None:
    assert await metric(b"in_flight 1\n" + b"x" * (MAX_METRICS_PAGE - 20)) == 1.0
    assert await metric(b"in_flight 1\n" + b"x" * MAX_METRICS_PAGE) is None
    async with serving(servers.flood) as port:
        source = MetricSource("in_flight", port)
        assert await read_metric(source) is None


async def test_a_server_that_answers_late_or_bit_by_bit_is_waited_for() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for at in range(len(answer)):
            await asyncio.sleep(0.001)
            writer.write(answer[at : at + 1])

    async with serving(handle) as port:
        assert await found(check("http", port)) == ""


async def test_a_check_that_is_given_up_closes_its_socket_and_calls_nobody_back() -> None:
    async with serving(answering(b"", then=servers.hang)) as port:
        for method in ("http", "tcp", "grpc"):
            containers, called = LocalContainers(), []
            probes = ContainerProbes(containers)
            probe = probes.begin(NAME, check(method, port), called.append)
            if method != "tcp":  # which is over by then
                await asyncio.sleep(0)
            probe.cancel()
            await probes.close()
            await asyncio.sleep(0)
            assert all(each.fileno() == -1 for each in containers.opened), method
            assert called == [], method


async def test_a_container_that_has_just_gone_fails_its_check() -> None:
    class Gone(LocalContainers):
        def address(self, name: str) -> str:
            raise errors.NotFound(f"there is no container {name!r}")

    for method in ("http", "tcp", "grpc"):
        result = await run_check(ContainerProbes(Gone()), check(method, 80))
        assert result == CheckResult(False, f"there is no container {NAME!r}")
