"""HAProxy on an edge node: what it serves, what changes without a closed connection, and what survives."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.model.ids import InstanceId, NodeId
from skerry.model.network_objects import EndpointState, ServiceEndpoint
from skerry.model.node_messages import NetworkUpdate
from skerry.model.routes import (
    NOT_SERVED,
    HeaderMatch,
    RateLimit,
    RouteLoad,
    RouteObject,
    RouteProtection,
    ServiceWake,
)
from skerry.model.tls_certificates import HttpChallenge
from skerry.node.routes import runtime_api
from skerry.node.routes.certificates import self_signed_pem
from skerry.node.routes.edge import remove
from skerry.node.routes.process import reload_pause_s
from tests.node.routes.conftest import Edge, in_state, processes_with, route, settings
from tests.support.waiting import eventually


async def test_requests_go_to_the_copies_of_the_route_with_true_client_addresses(edge: Edge) -> None:
    edge.put(route("r1"), edge.service(await edge.copies.start("a", "127.0.0.1")))
    seen = await edge.until("shop.test")
    assert seen["copy"] == "a"
    status, seen, _ = await edge.get(
        "SHOP.test:80",
        "/x?y=1",
        method="POST",
        data=io.BytesIO(b"z" * 5_000_000),
        headers={
            "X-Forwarded-For": "6.6.6.6",
            "X-Forwarded-Proto": "https",
            "Forwarded": "for=6.6.6.6",
            "X-Real-IP": "6.6.6.6",
            "X-Skerry-Public": "1",
            "X-Request-Id": "abc",
            "X-Forwarded-Prefix": "/evil",
            "X-Forwarded-Port": "1",
            "X_Forwarded_For": "6.6.6.6",
            "x-forwarded_proto": "https",
            "X_Real_IP": "6.6.6.6",
        },
    )
    assert (status, seen["path"], seen["size"]) == (200, "/x?y=1", 5_000_000)
    headers = seen["headers"]
    assert (headers["x-forwarded-for"], headers["x-forwarded-proto"]) == ("127.0.0.1", "http")
    assert headers["x-forwarded-host"] == "SHOP.test:80"
    assert headers["x-request-id"] == "abc"
    ours = {
        name for name in headers if name.replace("_", "-").startswith(("forwarded", "x-real", "x-skerry"))
    }
    assert not ours
    forwarded = {name for name in headers if name.replace("_", "-").startswith("x-forwarded")}
    assert forwarded == {"x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"}
    _, seen, _ = await edge.get("shop.test", tls=True)
    assert seen["headers"]["x-forwarded-proto"] == "https"
    assert seen["headers"]["x-request-id"]


async def test_the_most_specific_route_answers(edge: Edge) -> None:
    one, two, three = [await edge.copies.start(name, f"127.0.0.{n}") for n, name in enumerate("abc", 1)]
    edge.put(
        edge.service(one, name="one"),
        edge.service(two, name="two"),
        edge.service(three, name="three"),
        route("r1", "shop.test", "service/one"),
        route("r2", "shop.test/api", "service/two", strip_prefix=True),
        route("r3", "*.test", "service/three"),
        route("r4", "*/only", "service/two"),
        route("r5", "shop.test/api/v2", "service/three", headers=(HeaderMatch("x-beta", "yes"),)),
        route("r7", "shop.test/list", "service/three", headers=(HeaderMatch("x-list", "a, b"),)),
        route("r6", "away.test/old", "", redirect="https://new.test/here"),
    )
    await edge.until("shop.test")

    async def answers(host: str, path: str, **headers: str) -> str:
        status, body, _ = await edge.get(host, path, headers=headers)
        return f"{body['copy']} {body['path']}" if status == 200 else str(status)

    assert await answers("shop.test", "/x") == "a /x"
    assert await answers("shop.test", "/api") == "b /"
    assert await answers("shop.test", "/api/x?q=1") == "b /x?q=1"
    assert await answers("shop.test", "/apiary") == "a /apiary"
    assert await answers("other.test", "/") == "c /"
    assert await answers("a.b.test", "/") == "404"
    assert await answers("unknown", "/only/x") == "b /only/x"
    assert await answers("unknown", "/") == "404"
    assert await answers("shop.test", "/api/v2/x") == "b /v2/x"
    assert await answers("shop.test", "/api/v2/x", **{"X-Beta": "yes"}) == "c /api/v2/x"
    assert await answers("shop.test", "/list", **{"X-List": "a, b"}) == "c /list"
    assert await answers("shop.test", "/list", **{"X-List": "a"}) == "a /list"
    assert await answers("shop.test", "/api/v2/x", **{"X-Beta": "no, yes"}) == "c /api/v2/x"
    # Other spellings of a path are no way around its route.
    assert await answers("shop.test", "//api/x") == "b /x"
    assert await answers("shop.test", "/%61pi/x") == "b /x"
    assert await answers("shop.test", "/y/../api/x") == "b /x"
    assert await answers("shop.test", "/y%2fapi/x") == "a /y%2fapi/x", "it stays as it is"
    assert await answers("shop.test", "/api%2Fx%2fy") == "b /x/y"
    assert await answers("shop.test", "/api/x%2fy") == "b /x%2fy"
    assert await answers("shop.test", "/%2fapi%5cx") == "b /x"
    assert await answers("shop.test", "/y/..%2fapi/x") == "400"
    assert await answers("shop.test", "/y%5c%2e%2e%5capi") == "400"
    assert await answers("shop.test", "/\\api/x") == "b /x"
    assert await answers("shop.test", "/y\\..\\api/x") == "400"
    # Nor is a path in the host.
    assert await answers("shop.test/y", "/api/x") == "400"
    status, _, headers = await edge.get("away.test", "/old/x?y=1")
    assert (status, headers["location"]) == (308, "https://new.test/here/x?y=1")


async def test_routes_are_limited_and_protected(edge: Edge) -> None:
    salt = "ab12"
    edge.put(
        edge.service(await edge.copies.start("a", "127.0.0.1")),
        route("r1", "methods.test", methods=("GET", "HEAD")),
        route("r2", "basic.test", protection=RouteProtection.basic("me", "long-password", salt)),
        route("r3", "token.test", protection=RouteProtection.token("long-token-text", salt)),
        route("r4", "rate.test", rate=RateLimit.parse("5/h")),
        route("r5", "cors.test", cors=("https://app.test",)),
        route("r6", "tls.test", redirect="https"),
        route("r7", "plain.test", http_only=True),
    )
    await edge.until("methods.test")
    status, _, headers = await edge.get("methods.test", method="DELETE")
    assert (status, headers["allow"]) == (405, "GET, HEAD")

    status, _, headers = await edge.get("basic.test")
    assert (status, headers["www-authenticate"]) == (401, 'Basic realm="protected"')
    right = {"Authorization": "Basic bWU6bG9uZy1wYXNzd29yZA=="}  # me:long-password
    status, seen, _ = await edge.get("basic.test", headers=right)
    assert status == 200
    assert "authorization" not in seen["headers"]
    assert (await edge.get("basic.test", headers={"Authorization": "Basic bWU6d3Jvbmc="}))[0] == 401
    assert (await edge.get("token.test", headers={"Authorization": "Bearer long-token-text"}))[0] == 200
    assert (await edge.get("token.test", headers={"Authorization": "Bearer long-token-tex"}))[0] == 401
    assert (await edge.get("token.test"))[0] == 401

    statuses = [(await edge.get("rate.test"))[0] for _ in range(7)]
    assert statuses == [200] * 5 + [429] * 2

    origin = {"Origin": "https://app.test"}
    ask = origin | {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "x-a,x-b"}
    status, _, headers = await edge.get("cors.test", method="OPTIONS", headers=ask)
    assert (status, headers["access-control-allow-origin"]) == (204, "https://app.test")
    assert "PUT" in headers["access-control-allow-methods"]
    assert headers["access-control-allow-headers"] == "x-a,x-b"
    _, _, headers = await edge.get("cors.test", headers=origin)
    assert headers["access-control-allow-origin"] == "https://app.test"
    _, _, headers = await edge.get("cors.test", headers={"Origin": "https://evil.test"})
    assert "access-control-allow-origin" not in headers

    status, _, headers = await edge.get("tls.test", "/a?b")
    port = edge.settings.https.rpartition(":")[2]
    assert (status, headers["location"]) == (308, f"https://tls.test:{port}/a?b")
    assert (await edge.get("tls.test", tls=True))[0] == 200
    assert (await edge.get("plain.test", tls=True))[0] == 404


async def test_scaling_routes_and_certificates_change_nothing_for_open_connections(edge: Edge) -> None:
    a = await edge.copies.start("a", "127.0.0.1")
    edge.put(route("r1"), edge.service(a))
    await edge.until("shop.test")
    failures: list[object] = []
    answers: dict[str, int] = {}
    is_over = asyncio.Event()

    async def load() -> None:
        while not is_over.is_set():
            seen_by = answers  # a request that is under way when counting begins anew is not counted
            try:
                status, seen, _ = await edge.get("shop.test")
            except Exception as error:  # noqa: BLE001 - whatever a client sees is a failure
                failures.append(error)
                continue
            if status != 200:
                failures.append((status, seen))
            else:
                seen_by[seen["copy"]] = seen_by.get(seen["copy"], 0) + 1

    pid = edge.routes.pid
    async with (
        edge.client.ws_connect(f"http://{edge.settings.http}/", headers={"Host": "shop.test"}) as old,
        asyncio.TaskGroup() as group,
    ):
        await old.send_str("1")
        assert await old.receive_str() == "a 1"
        for _ in range(4):
            group.create_task(load())
        # Scaling: more copies than there were slots, so the configuration changes, too.
        more = [await edge.copies.start(f"b{n}", f"127.0.0.{n}") for n in range(2, 14)]
        edge.put(edge.service(a, *more))
        await eventually(lambda: len(answers) == 13)
        # An update: the first copy drains, and then goes; its WebSocket stays while it drains.
        edge.put(in_state(edge.service(a, *more), EndpointState.DRAINING, "a"))
        await edge.routes.apply()
        answers = {}
        await eventually(lambda: sum(answers.values()) > 50)
        assert "a" not in answers
        await old.send_str("2")
        assert await old.receive_str() == "a 2"
        await edge.routes.set_certificate("shop", ("shop.test",), self_signed_pem())
        edge.put(route("r2", "other.test"))
        await edge.until("other.test")
        edge.put(route("r1", rate=RateLimit(1_000_000)))
        await edge.routes.apply()
        answers = {}
        await eventually(lambda: sum(answers.values()) > 50)
        await old.send_str("3")
        assert await old.receive_str() == "a 3"
        is_over.set()
    assert failures == []
    assert edge.routes.pid == pid, "the same master all the time"


async def test_a_certificate_is_used_replaced_and_removed_without_a_reload(edge: Edge) -> None:
    edge.put(route("r1"), edge.service(await edge.copies.start("a", "127.0.0.1")))
    await edge.until("shop.test")
    default = await peer_certificate(edge, "shop.test")
    first, second = self_signed_pem(), self_signed_pem()
    await edge.routes.set_certificate("shop", ("shop.test", "*.shop.test"), first)
    assert await peer_certificate(edge, "shop.test") in first.decode()
    assert await peer_certificate(edge, "x.shop.test") in first.decode()
    assert await peer_certificate(edge, "other.test") == default
    await edge.routes.set_certificate("shop", ("shop.test",), second)
    assert await peer_certificate(edge, "shop.test") in second.decode()
    assert await peer_certificate(edge, "x.shop.test") == default
    for path in edge.files.certificates.iterdir():
        assert path.stat().st_mode & 0o077 == 0
    # A restart has it, too.
    assert edge.routes.pid is not None
    os.kill(edge.routes.pid, signal.SIGKILL)
    await edge.until("shop.test")
    assert await peer_certificate(edge, "shop.test") in second.decode()
    await edge.routes.remove_certificate("shop")
    assert await peer_certificate(edge, "shop.test") == default


async def peer_certificate(edge: Edge, host: str) -> str:
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    address, _, port = edge.settings.https.rpartition(":")

    async def read() -> str:
        _, writer = await asyncio.open_connection(address, int(port), ssl=context, server_hostname=host)
        try:
            found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        finally:
            writer.close()
        return ssl.DER_cert_to_PEM_cert(found)

    return await read()


async def test_challenges_of_acme_are_answered(edge: Edge) -> None:
    challenge = HttpChallenge("tok_en-1", "tok_en-1.print")
    edge.put(route("r1"), edge.service(await edge.copies.start("a", "127.0.0.1")))
    await edge.until("shop.test")
    path = "/.well-known/acme-challenge/tok_en-1"
    edge.put(challenge)
    await edge.routes.apply()
    assert await edge.until("shop.test", path) == "tok_en-1.print"
    edge.remove(challenge)
    await edge.routes.apply()
    assert (await edge.get("shop.test", path))[1]["copy"] == "a", "the application's own from now on"


async def test_a_request_is_held_until_the_first_copy_is_ready(edge: Edge) -> None:
    edge.put(route("r1", wakes=True), route("r2", "asleep.test", "service/other"), edge.service())
    await edge.until("asleep.test", status=503)
    held = asyncio.create_task(edge.get("shop.test"))
    reports = await eventually(
        lambda: [one for one in edge.state._reports.values() if isinstance(one, ServiceWake)]
    )
    assert [(one.service, one.number > 0) for one in reports] == [("s-web", True)]
    assert not held.done()
    edge.put(edge.service(await edge.copies.start("a", "127.0.0.1")))
    status, seen, _ = await held
    assert (status, seen["copy"]) == (200, "a")
    assert ServiceWake("s-web", 0) in edge.state._reports.values(), "nothing waits any more"


async def test_a_held_request_goes_to_a_copy_once_that_accepts_connections(edge: Edge) -> None:
    """HAProxy would wait for a second after a refused connection."""
    edge.put(route("r1", wakes=True), route("r2", "asleep.test", "service/other"), edge.service())
    await edge.until("asleep.test", status=503)
    held = asyncio.create_task(edge.get("shop.test"))
    await eventually(lambda: edge.routes._wakes.is_waiting("r1"))
    edge.put(edge.service(ServiceEndpoint(InstanceId("a"), NodeId("n1"), "127.0.0.1")))
    await edge.routes.apply()
    assert edge.routes._wakes.is_waiting("r1"), "the copy is ready, and nothing listens there yet"
    await edge.copies.start("a", "127.0.0.1")
    status, seen, _ = await held
    assert (status, seen["copy"]) == (200, "a")


async def test_requests_under_way_are_reported(edge: Edge) -> None:
    edge.put(route("r1"), edge.service(await edge.copies.start("a", "127.0.0.1")))
    await edge.until("shop.test")

    def reported() -> float | None:
        load = edge.state._reports.get(RouteLoad("s-web").network_key)
        return load.requests if isinstance(load, RouteLoad) else None

    host = {"Host": "shop.test"}
    async with edge.client.ws_connect(f"http://{edge.settings.http}/", headers=host):
        await eventually(lambda: reported() == 1.0)
        edge.put(route("r2", "other.test"))  # a new worker; the old one has the WebSocket
        await edge.until("other.test")
        await eventually(lambda: reported() == 1.0)
    await eventually(lambda: reported() == 0.0)


async def test_a_killed_haproxy_is_started_again(edge: Edge) -> None:
    edge.put(route("r1"), edge.service(await edge.copies.start("a", "127.0.0.1")))
    await edge.until("shop.test")
    first = edge.routes.pid
    assert first is not None
    for pid in processes_with(edge.files.config):
        os.kill(pid, signal.SIGKILL)
    await eventually(lambda: edge.routes.pid not in (None, first))
    await edge.until("shop.test")


async def test_haproxy_outlives_the_agent_and_is_adopted(tmp_path: Path) -> None:
    chosen = settings()
    first = Edge(tmp_path, chosen)
    await first.open()
    a = await first.copies.start("a", "127.0.0.1")
    first.put(route("r1"), first.service(a))
    await first.until("shop.test")
    await first.state.save()
    pid = first.routes.pid
    await first.crash()
    second = Edge(tmp_path, chosen)
    second.copies.port = first.copies.port
    await second.open()
    try:
        assert second.routes.pid == pid
        b = await second.copies.start("b", "127.0.0.2")
        second.put(route("r1"), second.service(b))
        await eventually(lambda: copy_is(second, "b"))
        assert second.routes.pid == pid
    finally:
        await second.close()
        # The first one is the parent of it here, and after a real crash nobody's.
        if first.routes._process._child is not None:
            first.routes._process._child.wait()
    assert processes_with(tmp_path) == []
    left = {path.name for path in (tmp_path / "routes").iterdir()}
    assert left == {"certificates", "certificates.txt"}
    assert not second.files.sockets.exists()


async def test_an_adopted_haproxy_that_knows_more_than_the_disk_goes_on_until_a_server_has_answered(
    tmp_path: Path,
) -> None:
    chosen = settings()
    first = Edge(tmp_path, chosen)
    await first.open()
    first.put(route("r1"), first.service(await first.copies.start("a", "127.0.0.1")))
    await first.until("shop.test")
    pid = first.routes.pid
    await first.crash()  # before its state was on disk
    await first.copies.start("a", "127.0.0.1")
    second = Edge(tmp_path, chosen)
    await second.open()
    try:
        assert second.state.all(RouteObject) == {}
        await second.routes.apply()
        assert (await second.get("shop.test"))[0] == 200
        assert second.routes.pid == pid
        second.state.apply(NetworkUpdate(True, ()))  # there is no route any more
        await second.routes.apply()
        assert second.routes.pid is None
    finally:
        await first.copies.stop()
        await second.close()
        if first.routes._process._child is not None:
            first.routes._process._child.wait()


async def copy_is(edge: Edge, name: str) -> bool:
    status, seen, _ = await edge.get("shop.test")
    return status == 200 and seen["copy"] == name


async def test_what_has_outlived_the_agent_is_removed_with_keys_and_sockets(tmp_path: Path) -> None:
    edge = Edge(tmp_path, settings())
    await edge.open()
    edge.put(route("r1"), edge.service(await edge.copies.start("a", "127.0.0.1")))
    await edge.until("shop.test")
    await edge.client.close()
    await edge.crash()
    removal = asyncio.create_task(remove(edge.files, edge.settings.program))
    child = edge.routes._process._child
    assert child is not None
    await asyncio.to_thread(child.wait)  # nobody's child after a real crash
    await removal
    assert processes_with(tmp_path) == []
    assert not edge.files.folder.exists()
    assert not edge.files.sockets.exists()


async def test_without_routes_nothing_runs(edge: Edge) -> None:
    one = route("r1")
    edge.put(one)
    await edge.until("shop.test", status=503)
    edge.remove(one)
    await eventually(lambda: edge.routes.pid is None)
    assert processes_with(edge.files.config) == []


async def test_bad_heads_are_refused(served: Edge) -> None:
    for head in (
        b"GET / HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: shop.test\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: shop.test\r\n" + b"X: y\r\n" * 500 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost : shop.test\r\n\r\n",
        b"GET /%zz HTTP/1.1\r\nHost: shop.test\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: shop.test\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET http://[::1 HTTP/1.1\r\nHost: [\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a/b?c\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: ../../x\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        address, _, port = served.settings.http.rpartition(":")
        reader, writer = await asyncio.open_connection(address, int(port))
        writer.write(head)
        with contextlib.suppress(OSError):  # it may have been refused before its end
            writer.write_eof()
        answer = await reader.read(-1)
        writer.close()
        assert answer == b"" or answer.split(b" ")[1].startswith(b"4"), (head, answer)
    assert (await served.get("shop.test"))[0] == 200


async def test_a_second_request_cannot_hide_in_the_body_of_another(served: Edge) -> None:
    address, _, port = served.settings.http.rpartition(":")
    reader, writer = await asyncio.open_connection(address, int(port))
    lengths = b"Content-Length: 60\r\nTransfer-Encoding: chunked\r\n"
    writer.write(b"POST / HTTP/1.1\r\nHost: shop.test\r\n" + lengths + b"\r\n0\r\n\r\n")
    writer.write(b"GET /hidden HTTP/1.1\r\nHost: shop.test\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n")
    writer.write_eof()
    answer = await reader.read(-1)
    writer.close()
    assert b"content-length" not in answer.partition(b'"headers": ')[2].lower(), (
        "only one length is passed on"
    )
    assert b"6.6.6.6" not in answer


@pytest.fixture
async def served(edge: Edge) -> Edge:
    edge.put(route("r1"), edge.service(await edge.copies.start("a", "127.0.0.1")))
    await edge.until("shop.test")
    return edge


async def test_a_configuration_that_haproxy_refuses_changes_nothing(edge: Edge) -> None:
    edge.put(route("r1"), edge.service(await edge.copies.start("a", "127.0.0.1")))
    await edge.until("shop.test")
    before = edge.files.config.read_bytes()
    edge.routes._settings = replace(edge.settings, http="not an address")
    edge.put(route("r2", "other.test"))
    await eventually(lambda: edge.routes.problem)
    (warning,) = edge.routes.warnings
    assert warning.startswith(NOT_SERVED)
    assert "missing port specification" in warning, "with the reason"
    assert edge.files.config.read_bytes() == before
    assert (await edge.get("shop.test"))[0] == 200


def silent_listener(port: int) -> tuple[socket.socket, list[socket.socket]]:
    """An address of a machine that has died: nobody answers a new connection."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.9", port))
    listener.listen(0)
    waiting: list[socket.socket] = []
    for _ in range(4):  # its queue is full
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.9", port))
        waiting.append(one)
    return listener, waiting


async def server_state(edge: Edge, backend: str, column: str) -> dict[str, str]:
    answer = await runtime_api.send(edge.files.admin_socket, "show stat -1 6 -1")
    rows = csv.DictReader(io.StringIO(answer.lstrip("# ")))
    return {row["svname"]: row[column] for row in rows if row["pxname"] == backend}


async def test_requests_for_a_copy_on_a_dead_node_go_to_another_one(edge: Edge) -> None:
    a = await edge.copies.start("a", "127.0.0.1")
    listener, waiting = silent_listener(edge.copies.port)
    dead = ServiceEndpoint(InstanceId("b"), NodeId("n2"), "127.0.0.9")
    try:
        edge.put(route("r1"), edge.service(a, dead))
        answers = [await edge.until("shop.test")]
        answers += [(await edge.get("shop.test"))[1] for _ in range(5)]
        assert {one["copy"] for one in answers} == {"a"}, "none has failed"
        assert int((await server_state(edge, "r_r1", "wredis"))["BACKEND"]) > 0, "the dead one was tried"
        # The mesh knows it a moment later: then it is not tried any more.
        edge.routes.unreachable_changed(frozenset({NodeId("n2")}))
        await eventually(lambda: has_state(edge, "c2", "DRAIN"))
        edge.routes.unreachable_changed(frozenset())
        await eventually(lambda: has_state(edge, "c2", "no check"))
        # A service with no other copies is tried where it was.
        edge.routes.unreachable_changed(frozenset({NodeId("n1"), NodeId("n2")}))
        await edge.routes.apply()
        assert await has_state(edge, "c1", "no check")
        assert (await edge.get("shop.test"))[0] == 200
    finally:
        for one in (listener, *waiting):
            one.close()


async def has_state(edge: Edge, server: str, state: str) -> bool:
    return (await server_state(edge, "r_r1", "status"))[server].startswith(state)


async def test_while_reloads_wait_copies_change_and_then_all_is_served(edge: Edge) -> None:
    a, b = [await edge.copies.start(name, f"127.0.0.{n}") for n, name in enumerate("ab", 1)]
    edge.put(route("r1"), edge.service(a))
    await edge.until("shop.test")
    async with edge.routes._applying:  # the reload that serves it sets the time of the next at its end
        edge.routes._reload_at = time.monotonic() + 3600  # as after many
    edge.put(route("r1"), route("r2", "other.test"), edge.service(b))
    await eventually(lambda: copy_is(edge, "b"))
    assert (await edge.get("other.test"))[0] == 404
    edge.routes._reload_at = 0.0
    edge.routes._has_work.set()
    await edge.until("other.test")
    assert await copy_is(edge, "b")


def test_the_more_processes_of_before_there_are_the_longer_reloads_wait() -> None:
    assert [reload_pause_s(old) for old in (0, 4, 5, 10, 1000)] == [0, 0, 1, 6, 30]


async def test_haproxy_goes_on_after_a_stop_that_leaves_it_and_ends_with_the_last_container(
    tmp_path: Path,
) -> None:
    edge = Edge(tmp_path, settings())
    await edge.open()
    edge.put(route("r1"), edge.service(await edge.copies.start("a", "127.0.0.1")))
    await edge.until("shop.test")
    await edge.routes.detach()
    edge.put(route("r2", "other.test"))
    await edge.routes.apply()
    assert (await edge.get("other.test"))[0] == 404, "what stays is as it was"
    assert (await edge.get("shop.test"))[0] == 200
    await edge._undo.aclose()
    await asyncio.to_thread(edge.routes.remove)
    await edge.copies.stop()
    assert processes_with(tmp_path) == []
    assert not edge.files.sockets.exists()
