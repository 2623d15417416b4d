"""Pages are told of changes of their topics and namespaces, together, and nobody else is."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from skerry.console.hub import ChangeHub, Topic
from skerry.model.ids import Namespace
from skerry.model.namespace_scope import WHOLE_CLOUD, NamespaceScope
from tests.support.waiting import PATIENCE_S

SHOP = NamespaceScope((Namespace("shop"),))


async def test_changes_of_a_moment_are_one_message() -> None:
    hub = ChangeHub()
    async with aclosing(hub.stream([Topic.INSTANCES, Topic.NODES], WHOLE_CLOUD)) as frames:
        await anext(frames)
        for _ in range(100):
            hub.notify(Topic.INSTANCES, "shop")
        hub.notify(Topic.NODES)
        hub.notify(Topic.MARKET)
        async with asyncio.timeout(PATIENCE_S):
            frame = await anext(frames)
    assert frame == b"event: instances\ndata: changed\n\nevent: nodes\ndata: changed\n\n"


async def test_a_bound_caller_hears_of_its_namespaces_alone() -> None:
    hub = ChangeHub()
    async with aclosing(hub.stream(list(Topic), SHOP)) as frames:
        await anext(frames)
        hub.notify(Topic.INSTANCES, "other")
        hub.notify(Topic.NODES)
        hub.notify(Topic.SERVICES, "shop")
        async with asyncio.timeout(PATIENCE_S):
            assert (
                await anext(frames) == b"event: events\ndata: changed\n\nevent: services\ndata: changed\n\n"
            )


async def test_nothing_is_collected_while_no_page_is_open() -> None:
    hub = ChangeHub()
    hub.notify(Topic.INSTANCES, "shop")
    assert hub.is_idle
    async with aclosing(hub.stream([Topic.INSTANCES], WHOLE_CLOUD)) as frames:
        await anext(frames)
        assert not hub.is_idle
        hub.notify(Topic.INSTANCES, "now")
        async with asyncio.timeout(PATIENCE_S):
            assert b"instances" in await anext(frames)
    assert hub.is_idle
