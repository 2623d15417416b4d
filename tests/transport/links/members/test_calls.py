"""Counters of calls, which members read from each other over real links."""

from __future__ import annotations

import pytest

from skerry.functions.continuum.member_api import FunctionCalls
from skerry.model import errors
from skerry.model.ids import FunctionName
from skerry.transport.links.members import messages
from tests.transport.links.members.conftest import Cloud, FakeServes


async def test_a_member_tells_what_calls_it_has_counted(cloud: Cloud, serves: FakeServes) -> None:
    links, there = cloud.links(), cloud.serve(serves).member()
    assert await links.read_calls(there) == ()
    serves.counted = (FunctionCalls(FunctionName("f"), 3, 1, 2, 0.5), FunctionCalls(FunctionName("g"), 1))
    assert await links.read_calls(there) == serves.counted


async def test_a_member_of_an_older_version_is_not_asked(
    cloud: Cloud, serves: FakeServes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "CALLS_SINCE", messages.VERSION + 1)
    with pytest.raises(errors.Unavailable, match="upgrade it"):
        await cloud.links().read_calls(cloud.serve(serves).member())
