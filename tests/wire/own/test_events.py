"""`/events`: in order, resumable, filtered, bounded, and at an end when anybody wants it to be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from skerry.model.settings import EventSettings
from tests.support.waiting import eventually
from tests.transport.http.conftest import Serve, Site, authority, logged, serve

__all__ = ["authority", "logged", "serve"]

FAST = EventSettings(heartbeat_s=0.05)


async def record(site: Site, *kinds: str) -> None:
    for kind in kinds:
        await site.plane.events.record(kind, f"{kind.partition('.')[0]}/x", actor="test")


async def frames(reply: aiohttp.ClientResponse) -> AsyncIterator[dict[str, str]]:
    """Events and comments as they come."""
    frame: dict[str, str] = {}
    async for raw in reply.content:
        line = raw.decode().rstrip("\n")
        if not line:
            yield frame
            frame = {}
        else:
            name, _, value = line.partition(": ")
            frame[name] = value


async def all_of(reply: aiohttp.ClientResponse) -> list[dict[str, str]]:
    return [frame async for frame in frames(reply)]


async def test_what_is_kept_comes_in_order_and_ends(serve: Serve) -> None:
    site = await serve()
    await record(site, "token.created", "node.joined", "token.revoked")
    session = await site.session()
    async with session.get("/events?follow=false") as reply:
        assert reply.headers["Content-Type"] == "text/event-stream"
        assert reply.headers["Cache-Control"] == "no-store"
        told = await all_of(reply)
    assert [one["event"] for one in told] == ["token.created", "node.joined", "token.revoked"]
    event = json.loads(told[1]["data"])
    assert (event["kind"], event["subject"], event["actor"]) == ("node.joined", "node/x", "test")


async def test_a_stream_follows_and_resumes_without_gap_or_repeat(serve: Serve) -> None:
    site = await serve()
    await record(site, "a.one")
    session = await site.session()
    async with session.get("/events?after=0") as reply:
        stream = frames(reply)
        assert (await anext(stream))["event"] == "a.one"
        await record(site, "a.two")
        last = (await anext(stream))["id"]
    await record(site, "a.three", "a.four")
    async with session.get("/events", headers={"Last-Event-ID": last}) as reply:
        stream = frames(reply)
        assert [(await anext(stream))["event"] for _ in range(2)] == ["a.three", "a.four"]


async def test_the_header_goes_before_the_parameter_since_browsers_repeat_the_url(serve: Serve) -> None:
    site = await serve()
    await record(site, "a.one", "a.two")
    session = await site.session()
    async with session.get("/events?follow=false") as reply:
        first = (await all_of(reply))[0]["id"]
    async with session.get("/events?after=0&follow=false", headers={"Last-Event-ID": first}) as reply:
        assert [one["event"] for one in await all_of(reply)] == ["a.two"]


async def test_without_an_id_a_stream_starts_now(serve: Serve) -> None:
    site = await serve(events=FAST)
    await record(site, "a.before")
    session = await site.session()
    async with session.get("/events") as reply:
        stream = frames(reply)
        assert await anext(stream) == {"": "still here"}  # it is open, and silent
        await record(site, "a.after")
        assert [one["event"] async for one in until_event(stream)] == ["a.after"]


async def until_event(stream: AsyncIterator[dict[str, str]]) -> AsyncIterator[dict[str, str]]:
    async for frame in stream:
        if "event" in frame:
            yield frame
            return


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("token", ["token.created", "token.revoked"]),
        ("token.created", ["token.created"]),
        ("node,token.revoked", ["node.joined", "token.revoked"]),
        ("other", []),
    ],
)
async def test_kinds_are_filtered_by_noun_or_whole(serve: Serve, kind: str, wanted: list[str]) -> None:
    site = await serve()
    await record(site, "token.created", "node.joined", "token.revoked")
    session = await site.session()
    async with session.get("/events", params={"follow": "false", "kind": kind}) as reply:
        assert [one["event"] for one in await all_of(reply)] == wanted


@pytest.mark.parametrize(
    "query", ["after=x", "after=-1", "after=1.x", "kind=Bad", "kind=a.b.c", "kind=,", "follow=maybe", "odd=1"]
)
async def test_a_bad_query_is_400_and_not_a_stream(serve: Serve, query: str) -> None:
    session = await (await serve()).session()
    async with session.get(f"/events?{query}") as reply:
        assert (reply.status, (await reply.json())["code"]) == (400, "invalid")


async def test_a_bad_last_event_id_is_400(serve: Serve) -> None:
    session = await (await serve()).session()
    async with session.get("/events", headers={"Last-Event-ID": "ä"}) as reply:
        assert reply.status == 400


async def forget_the_oldest(site: Site) -> None:
    """Record more events than are kept, and let the log trim them."""
    trimming = asyncio.ensure_future(site.plane.events.run())
    await record(site, *(f"a.n{number}" for number in range(200)))
    await eventually(lambda: kept_count(site, 200))
    trimming.cancel()
    await asyncio.gather(trimming, return_exceptions=True)


async def kept_count(site: Site, below: int) -> bool:
    return len((await site.plane.store.range("event/")).entries) < below


@pytest.mark.parametrize("follow", ["true", "false"])
async def test_a_reader_that_is_too_late_is_told_and_goes_on_with_what_is_kept(
    serve: Serve, follow: str
) -> None:
    site = await serve(events=EventSettings(keep=100))
    await forget_the_oldest(site)
    session = await site.session()
    async with session.get("/events", params={"after": "1", "follow": follow}) as reply:
        stream = frames(reply)
        reset = await anext(stream)
        assert reset["event"] == "reset"
        assert "no longer stored" in json.loads(reset["data"])["reason"]
        assert (await anext(stream))["event"].startswith("a.n")


async def test_a_silent_stream_is_kept_open_with_comments(serve: Serve) -> None:
    session = await (await serve(events=FAST)).session()
    async with session.get("/events") as reply:
        stream = frames(reply)
        assert [await anext(stream) for _ in range(3)] == [{"": "still here"}] * 3


async def test_streams_are_bounded_and_give_their_place_back(serve: Serve) -> None:
    site = await serve(events=EventSettings(max_streams=2, heartbeat_s=0.05))
    session = await site.session()
    first, second = await session.get("/events"), await session.get("/events")
    async with session.get("/events") as reply:
        assert (reply.status, (await reply.json())["code"]) == (429, "overloaded")
        assert "Retry-After" in reply.headers
    first.close()

    async def is_free_again() -> bool:
        async with session.get("/events?follow=false") as reply:
            return reply.status == 200

    await eventually(is_free_again)
    second.close()


async def test_a_reader_that_does_not_read_holds_up_only_itself(serve: Serve) -> None:
    site = await serve()
    slow = await site.wire()
    await slow.send(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await slow.reader.readuntil(b"\r\n\r\n")
    slow.writer.transport.pause_reading()
    session = await site.session()
    async with session.get("/events") as reply:
        stream = frames(reply)
        for number in range(100):
            await site.plane.events.record("a.big", "a/x", actor="test", reason="x" * 100_000)
            assert (await anext(stream))["event"] == "a.big", number
    waiting = [c.transport.get_write_buffer_size() for c in site.server._state.connections]
    assert 0 < max(waiting) < 1_000_000


async def test_a_client_that_leaves_takes_its_watch_with_it(serve: Serve) -> None:
    site = await serve()
    session = await site.session()
    reply = await session.get("/events")
    reply.close()
    await eventually(lambda: not site.server._state.tasks)


async def test_stopping_the_server_ends_streams_with_a_goodbye(serve: Serve) -> None:
    site = await serve()
    session = await site.session()
    replies = [await session.get("/events") for _ in range(5)]
    reading = asyncio.gather(*(reply.read() for reply in replies))
    await site.server.stop(5.0)
    assert set(await reading) == {b": the server stops; come back with Last-Event-ID\n\n"}
    assert not site.server._state.tasks


async def test_a_store_that_goes_away_breaks_the_stream_so_that_the_client_comes_back(
    serve: Serve, logged: list[Any]
) -> None:
    site = await serve()
    session = await site.session()
    async with session.get("/events") as reply:
        await site.plane.store.close()
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.read()
    assert "request.broken" in [line["event"] for line in logged]
