"""A client that knows only the document goes through its canonical script: Allocate, Start, Stop, Free."""

from __future__ import annotations

from tests.support.certificates import SERVER_NAME
from tests.wire.aurae.calls import compile_document, script


async def test_the_canonical_script_of_a_client_that_knows_only_the_document(served, tmp_path):
    pair = served.authority.issue("an-aurae-client", "deployer")
    served.keeper.on_start = lambda started: started.write(b"zzz\n")
    told = await script(
        stubs=str(compile_document(tmp_path)),
        socket=str(served.path),
        ca=str(served.authority.ca),
        certificate=str(pair.certificate),
        key=str(pair.key),
        server_name=SERVER_NAME,
        pid="4242",
    )
    assert told == {
        "allocated": ["my-cell", False],
        "first_line": "zzz",
        "second_free": "NOT_FOUND",
    }
    assert (served.keeper.cells, served.keeper.started) == ({}, {})
