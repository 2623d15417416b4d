"""A client that knows only the document goes through its canonical script: Allocate, Start, Stop, Free."""

from __future__ import annotations

from tests.wire.aurae.calls import DOCUMENT, compile_stubs, script


async def test_the_canonical_script_of_a_client_that_knows_only_the_document(served, tmp_path):
    served.keeper.on_start = lambda started: started.write(b"zzz\n")
    told = await script("document_client", served, compile_stubs(DOCUMENT, tmp_path), pid="4242")
    assert told == {
        "allocated": ["my-cell", False],
        "first_line": "zzz",
        "second_free": "NOT_FOUND",
    }
    assert (served.keeper.cells, served.keeper.started) == ({}, {})
