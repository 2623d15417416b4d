"""A client that knows only Aurae's present layout makes the calls of today's `aer`."""

from __future__ import annotations

from skerry import __version__
from tests.wire.aurae.calls import PRESENT, compile_stubs, script


async def test_the_calls_of_aer_by_a_client_that_knows_only_the_present_layout(served, tmp_path):
    served.keeper.on_start = lambda started: started.write(b"zzz\n")
    told = await script("present_client", served, compile_stubs(PRESENT, tmp_path))
    assert told == {
        "discovered": [True, __version__],
        "allocated": [["my-cell", False], ["my-cell/child", False]],
        "started": [True, True, True],
        "first_line": "zzz",
        "listed": [["my-cell", 200, ["my-cell/child"]]],
        "second_free": "NOT_FOUND",
        "left": 0,
    }
    assert (served.keeper.cells, served.keeper.started) == ({}, {})
