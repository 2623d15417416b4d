"""Web functions in the session of a node: only those that run them are told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skerry.model.container_options import NodeFeature
from skerry.model.ids import FunctionName
from tests.control.sessions.test_node_session import (
    TAKER,
    Told,
    catalogue,
    function,
    instances,
    members,
    sharing,
)

__all__ = ["catalogue", "instances", "members", "sharing"]  # fixtures


@pytest.mark.parametrize("features", [(), (NodeFeature.WEB_FUNCTIONS,)])
async def test_a_node_that_runs_no_web_functions_is_told_of_the_others(sharing, catalogue, features):
    catalogue.put("page", replace(function("page"), is_web=True))
    hello = replace(TAKER, facts=replace(TAKER.facts, features=features))
    async with sharing.connect("n1", hello) as session:
        told = Told(session)
        for _ in range(2):
            await told.next()
        assert len((await told.next()).functions) == (2 if features else 1)
        catalogue.put("a", replace(function("a", 2), is_web=True))
        update = await told.next()
        # One that becomes a web function is gone for such a node.
        assert update.removed == (() if features else (FunctionName("a"),))
