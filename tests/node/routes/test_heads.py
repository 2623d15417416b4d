"""Request heads made by a seed, through HAProxy: what reaches a copy is what its route allows."""

from __future__ import annotations

import asyncio
import csv
import io
import posixpath
from pathlib import Path
from urllib.parse import unquote

from skerry.model.routes import RouteProtection
from skerry.node.routes import runtime_api
from tests.node.routes.conftest import Edge, children_of, route
from tests.support.http_heads import HeadFuzzer, send_heads
from tests.support.waiting import eventually

HOSTS = [b"a.test", b"A.test:80", b"x.wild.test"]


async def test_no_head_breaks_it_leaves_anything_open_or_reaches_what_is_protected(edge: Edge) -> None:
    locked = {"protection": RouteProtection.token("long-token-text", "ab12")}
    edge.put(
        route("r1", "a.test"),
        route("r2", "a.test/admin", **locked),
        route("r3", "*.wild.test"),
        route("r4", "*.wild.test/admin", **locked),
        edge.service(await edge.copies.start("a", "127.0.0.1")),
    )
    await edge.until("a.test")
    assert edge.routes.pid is not None
    [worker] = children_of(edge.routes.pid)
    before = await open_connections(edge)
    address, _, port = edge.settings.http.rpartition(":")
    edge.copies.seen.clear()
    found = await send_heads(
        HeadFuzzer(4, HOSTS), lambda: asyncio.open_connection(address, int(port)), count=1500
    )
    assert min(found[status] for status in ("200", "400", "401")) > 20, found
    assert {status for status in found if status[0] == "5"} <= {"501", "505"}, found
    assert edge.copies.seen
    for path, headers in edge.copies.seen:
        assert headers.getall("x-forwarded-for") == ["127.0.0.1"]
        assert not [name for name in headers if "skerry" in name.lower() or "real" in name.lower()]
        assert not [name for name in headers if "_" in name and "forwarded" in name.lower()]
        spelled = posixpath.normpath(unquote(path.partition("?")[0]).replace("\\", "/"))
        assert not f"{spelled}/".startswith("/admin/"), path
    assert children_of(edge.routes.pid) == [worker], "the same process"
    await eventually(lambda: same_connections(edge, before), what="no connection stays")
    assert (await edge.get("a.test"))[0] == 200
    assert len(list(Path(f"/proc/{worker}/fd").iterdir())) < 60


async def open_connections(edge: Edge) -> str:
    answer = await runtime_api.send(edge.files.admin_socket, "show stat -1 1 -1")
    [row] = csv.DictReader(io.StringIO(answer.lstrip("# ").strip()))
    return str(row["scur"])


async def same_connections(edge: Edge, before: str) -> bool:
    return await open_connections(edge) == before
