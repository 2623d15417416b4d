"""Web functions of a whole cloud: a server without workers, which forwards every call, and a node, which runs
them; called at both, and on the sockets for HAProxy."""

from __future__ import annotations

import asyncio
import io
import os
import random
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.daemon.test_members import Machine, until_taken
from tests.daemon.test_node import join_token
from tests.support.clusters import sweep
from tests.support.functions import body, delete, result
from tests.support.skerry import PREPARED_WORKERS, Skerry, running
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.root

SITE = r"""
import threading, time
gate, closed = threading.Event(), []
def handler(request):
    return globals()[request.path.split("/")[1] or "index"](request)
def index(request):
    return {
        "method": request.method, "path": request.path, "query": request.query.pairs(),
        "headers": request.headers.pairs(), "client": request.client, "scheme": request.scheme,
        "root": request.root_path, "caller": request.caller,
    }
def echo(request):
    headers = {"content-type": "image/x", "connection": "x-hop", "x-hop": "1", "x-a": ["1", "2"]}
    return 200, headers, request.body
def events(request):
    yield "data: 1\n\n"
    gate.wait()
    yield "data: 2\n\n"
def wait(request):
    def parts():
        yield "begun"
        gate.wait()
        yield " done"
    return 200, {"content-type": "text/event-stream"}, parts()
def release(request):
    gate.set()
def shut(request):
    gate.clear()
def endless(request):
    try:
        while True:
            yield b"x" * 65536
    finally:
        closed.append(1)
def was_closed(request): return str(len(closed))
def numbers(request):
    for n in range(int(request.query["n"])):
        yield b"%08d" % n * 8192
def empty(request): return 304, {"etag": "e"}, None
def raises(request): raise ValueError("a secret of the author")
def nonsense(request): return "x", "y", "z"
def breaks(request):
    yield "begun"
    raise ValueError("in the middle")
def short(request):
    return 200, {"content-length": "100"}, iter(["too little"])
def sleeps(request): time.sleep(60)
"""
GREEN = "def handler(request):\n    return 'green'\n"
PLAIN = "def handler(params, context):\n    return params\n"


class Cloud(NamedTuple):
    server: Skerry
    node: Skerry


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    folder = tmp_path_factory.mktemp("web")
    (folder / "server").mkdir()
    (folder / "node").mkdir()
    with running(folder / "server", role="server") as server:
        joining = (
            "--join",
            server.ready["http"],
            "--token",
            join_token(server),
            "--name",
            "edge",
            *PREPARED_WORKERS,
        )
        machine = Machine(folder / "node", *joining)
        try:
            until_taken(server, "site", SITE, Web=True, MaxConcurrency=200, TimeoutS=20, MemoryMB=128)
            until_taken(server, "plain", PLAIN)
            assert server.call("PUT", "/namespace/", {"name": "shop"})[0] == 201
            assert server.call("PUT", "/namespace/", {"name": "lab"})[0] == 201
            status, said = server.call("POST", "/create?namespace=shop", body("site", GREEN, Web=True))
            assert status == 200, said
            machine.knows("plain", "site")
            yield Cloud(server, machine.skerry)
            assert machine.skerry.stop() == 0, machine.skerry.said()
        finally:
            sweep(machine.skerry)
    assert not (folder / "server" / "data" / "web.sock").exists()
    assert not (folder / "node" / "data" / "web.sock").exists()


@asynccontextmanager
async def client(skerry: Skerry, **headers: str) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(PATIENCE_S)
    async with aiohttp.ClientSession(
        skerry.ready["http"], headers=headers, timeout=timeout, auto_decompress=False
    ) as session:
        yield session


@asynccontextmanager
async def proxy(skerry: Skerry, **headers: str) -> AsyncIterator[aiohttp.ClientSession]:
    """As HAProxy connects."""
    connector = aiohttp.UnixConnector(skerry.ready["web_socket"], limit=200)
    async with aiohttp.ClientSession(
        "http://shop.example.org", connector=connector, headers=headers
    ) as session:
        yield session


def token(server: Skerry, role: str, *namespaces: str) -> str:
    status, made = server.call("POST", "/token/", {"role": role, "namespaces": list(namespaces)})
    assert status == 201, made
    return str(made["token"])


@pytest.fixture(params=["server", "node"])
def at(request: pytest.FixtureRequest, cloud: Cloud) -> Skerry:
    """Where the call arrives: at the server it goes on to the node."""
    found: Skerry = getattr(cloud, request.param)
    return found


async def test_a_request_reaches_the_handler_as_it_is(at: Skerry) -> None:
    async with client(at, **{"X-Skerry-Public": "1", "X-Own": "2"}) as session:
        async with session.request("DELETE", "/web/site//a%20b/?x=1&x=2&y") as reply:
            assert (await reply.json())["path"] == "//a b/"
        async with session.delete("/web/site/index/a%20b/?x=1&x=2&y") as reply:
            assert reply.status == 200
            got = await reply.json()
    headers = dict(got.pop("headers"))
    assert got == {
        "method": "DELETE",
        "path": "/index/a b/",
        "query": [["x", "1"], ["x", "2"], ["y", ""]],
        "client": "127.0.0.1",
        "scheme": "http",
        "root": "/web/site",
        "caller": "uid:0",
    }
    assert headers["x-own"] == "2"
    assert "x-skerry-public" not in headers


async def test_bodies_of_any_content_and_size_come_back_and_headers_of_a_connection_do_not(
    at: Skerry,
) -> None:
    content = random.Random(7).randbytes(5_000_000)
    async with client(at) as session:
        for method in ("POST", "PUT", "PATCH"):
            async with session.request(method, "/web/site/echo", data=io.BytesIO(content)) as reply:
                assert (reply.status, reply.headers["content-type"]) == (200, "image/x")
                assert reply.headers.getall("x-a") == ["1", "2"]
                assert "x-hop" not in reply.headers
                assert await reply.read() == content
        async with session.post("/web/site/echo", data=io.BytesIO(bytes(17 * 1024 * 1024))) as reply:
            assert reply.status == 413
        async with session.head("/web/site/index") as reply:
            assert int(reply.headers["content-length"]) > 100
        async with session.get("/web/site/empty") as reply:
            assert (reply.status, reply.headers["etag"], await reply.read()) == (304, "e", b"")
        async with session.options("/web/site/index") as reply:
            assert (await reply.json())["method"] == "OPTIONS"
        async with session.get("/web/site/release") as reply:
            assert (reply.status, await reply.read()) == (204, b"")


async def test_events_arrive_while_the_handler_goes_on(at: Skerry) -> None:
    async with client(at) as session:
        await (await session.get("/web/site/shut")).read()
        async with session.get("/web/site/events") as reply:
            assert await reply.content.readuntil(b"\n\n") == b"data: 1\n\n"
            await (await session.get("/web/site/release")).read()
            assert await reply.content.read() == b"data: 2\n\n"


async def test_a_slow_reader_gets_everything_in_order(at: Skerry) -> None:
    count = 400
    async with client(at) as session, session.get(f"/web/site/numbers?n={count}") as reply:
        for n in range(count):
            assert await reply.content.readexactly(8 * 8192) == b"%08d" % n * 8192
            if n % 100 == 0:
                await asyncio.sleep(0)
        assert reply.content.at_eof() or await reply.content.read() == b""


async def test_a_client_that_leaves_ends_its_call(at: Skerry) -> None:
    async with client(at) as session:

        async def closed() -> int:
            async with session.get("/web/site/was_closed") as reply:
                return int(await reply.text())

        async def all_closed() -> bool:
            return await closed() == before + 3

        before = await closed()
        for _ in range(3):
            reply = await session.get("/web/site/endless")
            assert await reply.content.readexactly(1_000_000)
            reply.close()
        await eventually(all_closed)


async def test_a_hundred_at_once(at: Skerry) -> None:
    async with client(at) as session:

        async def one(n: int) -> bytes:
            async with session.post("/web/site/echo", data=b"%d" % n * 1000) as reply:
                return await reply.read()

        assert await asyncio.gather(*map(one, range(100))) == [b"%d" % n * 1000 for n in range(100)]


async def test_a_handler_that_fails_tells_its_callers_nothing(at: Skerry, cloud: Cloud) -> None:
    async with client(at) as session:
        for path, status, code in (
            ("/raises", 500, "function-failed"),
            ("/nonsense", 502, "bad-response"),
            ("/unknown", 500, "function-failed"),
        ):
            async with session.get(f"/web/site{path}") as reply:
                said = await reply.json()
                assert (reply.status, said["code"]) == (status, code)
                assert set(said) == {"error", "code", "request_id"}
                assert "secret" not in said["error"]
        for path in ("/breaks", "/short"):
            with pytest.raises(aiohttp.ClientPayloadError):
                async with session.get(f"/web/site{path}") as reply:
                    await reply.read()
    assert "ValueError: a secret of the author" in at.said()
    assert "web_function.broken" in at.said()
    logged = cloud.node.cli("fn", "logs", "site", "--url", cloud.node.ready["http"])
    assert "a secret of the author" in logged.stdout, logged.stderr


def test_the_contract_of_invoke_stays(cloud: Cloud) -> None:
    got = result(cloud.server, "site", {"n": 1})
    assert (got["status"], got["body"]["method"], got["body"]["path"]) == (200, "POST", "/")
    assert result(cloud.server, "plain", {"n": 1}) == {"n": 1}
    assert cloud.server.call("GET", "/function/site")[1]["Web"] is True
    assert "Web" not in cloud.server.call("GET", "/function/plain")[1]


def test_the_command_line_deploys_a_web_function_and_keeps_it_one(cloud: Cloud, tmp_path: Path) -> None:
    code = tmp_path / "leaf.py"
    code.write_text("def handler(request):\n    return request.method\n")
    done = cloud.server.cli("fn", "deploy", "--web", "--memory", "32", str(code))
    assert done.returncode == 0, done.stderr
    assert "/web/leaf" in done.stderr
    assert cloud.server.call("PATCH", "/web/leaf/x") == (200, "PATCH")
    for flags, status in (((), 200), (("--no-web",), 404)):
        assert cloud.server.cli("fn", "deploy", *flags, str(code)).returncode == 0
        assert cloud.server.call("GET", "/web/leaf/x")[0] == status
    delete(cloud.server, "leaf")


async def test_a_token_reaches_the_functions_of_its_namespaces_and_no_others(cloud: Cloud) -> None:
    shop, lab = (token(cloud.server, "invoker", name) for name in ("shop", "lab"))
    answers = []
    async with client(cloud.server, Authorization=f"Bearer {lab}") as session:
        for name in (
            "site",
            "shop:site",
            "shop:absent",
            "default:site",
            "absent",
            "plain",
            "a%2fb",
            ":site",
            "%00",
        ):
            async with session.get(f"/web/{name}/index") as reply:
                said = await reply.json()
                answers.append((reply.status, {**said, "request_id": ""}))
    assert answers == [answers[0]] * len(answers)
    assert answers[0][0] == 404
    async with client(cloud.server, Authorization=f"Bearer {shop}") as session:
        for name in ("site", "shop:site", "shop%3Asite"):
            async with session.get(f"/web/{name}/index") as reply:
                assert (reply.status, await reply.text()) == (200, "green")
    everything = token(cloud.server, "invoker")
    async with (
        client(cloud.server, Authorization=f"Bearer {everything}") as session,
        session.get("/web/site/index") as reply,
    ):
        got = await reply.json()
        assert "authorization" not in dict(got["headers"]), "a token of the cloud is none of the handler's"
    async with (
        client(cloud.server, Authorization=f"Bearer {token(cloud.server, 'viewer')}") as session,
        session.get("/web/site/index") as reply,
    ):
        assert reply.status == 403
    async with (
        client(cloud.server, **{"X-Forwarded-For": "192.0.2.1"}) as session,
        session.get("/web/site/index") as reply,
    ):
        assert reply.status == 401


async def test_the_socket_serves_public_routes_to_anybody_and_others_to_tokens(cloud: Cloud) -> None:
    mode = os.stat(cloud.server.ready["web_socket"]).st_mode
    assert stat.S_IMODE(mode) in (0o660, 0o600)
    forwarded = {"X-Forwarded-For": "6.6.6.6, 192.0.2.9", "X-Forwarded-Proto": "https"}
    for here in cloud:
        async with proxy(here, **forwarded) as session:
            async with session.get("/web/site/index") as reply:
                assert reply.status == 401, "root at the other end is not its client"
            public = {
                "X-Skerry-Public": "1",
                "Authorization": "Basic abc",
                "Origin": "https://shop.example.org",
            }
            async with session.get("/web/site/index", headers=public) as reply:
                assert reply.status == 200
                got = await reply.json()
            assert (got["client"], got["scheme"], got["caller"], got["root"]) == (
                "192.0.2.9",
                "https",
                "",
                "",
            )
            headers = dict(got["headers"])
            assert (headers["authorization"], headers["host"]) == ("Basic abc", "shop.example.org")
            async with session.get("/web/shop:site/x", headers=public) as reply:
                assert await reply.text() == "green"
            async with session.get("/web/plain/x", headers=public) as reply:
                assert reply.status == 404
            async with session.get("/function", headers=public) as reply:
                assert reply.status == 404, "nothing else is served there"
    shop = token(cloud.server, "invoker", "shop")
    async with proxy(cloud.server, Authorization=f"Bearer {shop}") as session:
        async with session.get("/web/shop:site/x") as reply:
            assert await reply.text() == "green"
        async with session.get("/web/site/index") as reply:
            assert reply.status == 404, "a route names a key, not a name in the namespace of its caller"


async def test_whatever_heads_come_the_server_goes_on(cloud: Cloud) -> None:
    chance = random.Random(11)
    split = urlsplit(cloud.server.ready["http"])
    places: list[Any] = [(split.hostname, split.port), cloud.server.ready["web_socket"]]
    beginnings = [
        b"GET /web/site/index HTTP/1.1\r\nhost: localhost\r\nx-skerry-public: 1\r\n",
        b"POST /web/",
        b"",
    ]
    loop = asyncio.get_running_loop()
    for number in range(120):
        noise = chance.randbytes(chance.randrange(1, 300))
        words = chance.choice(
            [
                b"content-length: -1",
                b"transfer-encoding: chunked, x",
                b"connection: upgrade",
                b"x: \x00",
                b"host: a\r\nhost: b",
                b"expect: 100-continue",
                b"%2f..%00",
            ]
        )
        place = places[number % 2]
        family = socket.AF_UNIX if isinstance(place, str) else socket.AF_INET
        with socket.socket(family) as raw:
            raw.setblocking(False)
            await loop.sock_connect(raw, place)
            await loop.sock_sendall(
                raw, chance.choice(beginnings) + chance.choice([noise, words]) + b"\r\n\r\n"
            )
            if chance.random() < 0.5:
                raw.shutdown(socket.SHUT_WR)
                async with asyncio.timeout(PATIENCE_S):
                    answer = await loop.sock_recv(raw, 65536)
                assert not answer or answer.startswith(b"HTTP/1.1 ")
    async with client(cloud.server) as session, session.get("/web/site/index") as reply:
        assert reply.status == 200
    assert "request.failed" not in cloud.server.said()
    assert "Traceback" not in cloud.server.said()
