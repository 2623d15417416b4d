"""A stop while the network is being changed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from skerry.model.settings import NetworkSettings
from tests.node.network.machines import Ground
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.root


async def test_a_stop_in_the_middle_of_a_first_subnet_leaves_nothing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that builds the bridge cannot be cancelled: what it builds must not outlive the stop."""
    building, may_go_on, built = threading.Event(), threading.Event(), threading.Event()

    async with ground.agent(waits=True, settings=NetworkSettings(pool=0)) as network:
        build = network._links.build_bridge

        def slowly(*, is_new: bool) -> None:
            building.set()
            assert may_go_on.wait(PATIENCE_S)
            build(is_new=is_new)
            built.set()

        monkeypatch.setattr(network._links, "build_bridge", slowly)
        using = asyncio.create_task(network.use("10.98.0.0/24"))
        await asyncio.to_thread(building.wait)
        using.cancel()
        asyncio.get_running_loop().call_later(0.1, may_go_on.set)
        await asyncio.wait({using})
        assert using.cancelled()
    assert await asyncio.to_thread(built.wait, PATIENCE_S)
    assert ground.links() == []
    assert ground.tables() == []
