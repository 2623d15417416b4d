"""Links on the bridge, and their removal."""

from __future__ import annotations

import pytest

from skerry.node.network import bridge
from tests.node.network.machines import Ground

pytestmark = pytest.mark.root


async def test_a_link_that_the_kernel_still_lists_after_its_removal_is_looked_for_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ground.agent() as network:
        await network.attach("web")
        before = bridge._link_names()
        read = bridge._link_names
        listed = iter([before, before])  # as it was: when its removal is requested, and just after
        monkeypatch.setattr(bridge, "_link_names", lambda: next(listed, None) or read())
        await network.detach("web")
        assert next(listed, None) is None
