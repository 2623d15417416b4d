"""Pages are told of changes of their topics and namespaces, together, and nobody else is."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing

import pytest

from skerry.console.hub import ChangeHub, Topic
from skerry.kit.clock import ManualClock, SystemClock
from skerry.model.ids import Namespace
from skerry.model.namespace_scope import WHOLE_CLOUD, NamespaceScope
from tests.support.waiting import PATIENCE_S

SHOP = NamespaceScope((Namespace("shop"),))


async def test_changes_of_a_moment_are_one_message() -> None:
    hub = ChangeHub(SystemClock())
    async with aclosing(hub.stream([Topic.INSTANCES, Topic.NODES], WHOLE_CLOUD)) as frames:
        await anext(frames)
        for _ in range(100):
            hub.notify(Topic.INSTANCES, "shop")
        hub.notify(Topic.NODES)
        hub.notify(Topic.MARKET)
        async with asyncio.timeout(PATIENCE_S):
            frame = await anext(frames)
    assert topics_of(frame) == ["instances", "nodes"]


async def test_a_bound_caller_hears_of_its_namespaces_alone() -> None:
    hub = ChangeHub(SystemClock())
    async with aclosing(hub.stream(list(Topic), SHOP)) as frames:
        await anext(frames)
        hub.notify(Topic.INSTANCES, "other")
        hub.notify(Topic.NODES)
        hub.notify(Topic.SERVICES, "shop")
        async with asyncio.timeout(PATIENCE_S):
            assert topics_of(await anext(frames)) == ["events", "services"]


async def test_what_changed_after_a_page_was_read_is_sent_when_its_stream_opens() -> None:
    clock = ManualClock()
    hub = ChangeHub(clock)
    hub.notify(Topic.NODES)
    clock.advance(1)
    position = hub.position(clock.monotonic())
    clock.advance(1)
    hub.notify(Topic.CALLS, "shop")
    hub.notify(Topic.MESH)
    hub.notify(Topic.ROUTES, "other")
    assert await first_topics(hub, WHOLE_CLOUD, position) == ["calls", "events", "mesh", "routes"]
    assert await first_topics(hub, SHOP, position) == ["calls"]


@pytest.mark.parametrize("position", ["nonsense", "-", "another-5.0"])
async def test_everything_has_changed_since_a_position_that_is_not_known(position: str) -> None:
    hub = ChangeHub(ManualClock())
    assert await first_topics(hub, SHOP, position) == sorted(Topic)


async def test_positions_are_forgotten_when_too_much_has_changed_since() -> None:
    clock = ManualClock()
    hub = ChangeHub(clock)
    position = hub.position(clock.monotonic())
    clock.advance(1)
    for number in range(20_000):
        hub.notify(Topic.INSTANCES, f"n{number}")
    assert len(hub._times) <= 10_000
    assert await first_topics(hub, SHOP, position) == sorted(Topic)


async def test_a_message_names_the_position_after_which_the_next_stream_goes_on() -> None:
    clock = ManualClock()
    hub = ChangeHub(clock)
    async with aclosing(hub.stream([Topic.NODES], WHOLE_CLOUD)) as frames:
        greeting = await anext(frames)
        assert greeting == b"retry: 2000\nid: " + hub.position(0.0).encode() + b"\n\n"
        clock.advance(1)
        hub.notify(Topic.NODES)
        async with asyncio.timeout(PATIENCE_S):
            message = await anext(frames)
    position = message.split(b"id: ")[1].split(b"\n")[0].decode()
    clock.advance(1)
    hub.notify(Topic.VOLUMES, "shop")
    assert await first_topics(hub, WHOLE_CLOUD, position) == ["events", "nodes", "volumes"]


async def first_topics(hub: ChangeHub, scope: NamespaceScope, position: str) -> list[str]:
    async with aclosing(hub.stream(list(Topic), scope, position)) as frames:
        await anext(frames)
        async with asyncio.timeout(PATIENCE_S):
            return topics_of(await anext(frames))


def topics_of(message: bytes) -> list[str]:
    return re.findall("^event: (.*)$", message.decode(), re.MULTILINE)
