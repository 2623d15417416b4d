"""A client that knows only the document goes through its canonical script: Allocate, Start, Stop, Free."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

from tests.support.certificates import SERVER_NAME
from tests.wire.aurae.calls import DOCUMENT


@pytest.fixture
def stubs(tmp_path) -> Path:
    folder = tmp_path / "stubs"
    folder.mkdir()
    sources = ["runtime.proto", "observe.proto", "schedule.proto"]
    outs = [f"--python_out={folder}", f"--grpc_python_out={folder}"]
    assert protoc.main(["protoc", f"--proto_path={DOCUMENT}", *outs, *sources]) == 0
    return folder


async def script(**wanted: str) -> dict[str, object]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.wire.aurae.document_client",
        json.dumps(wanted),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    return json.loads(out)


async def test_the_canonical_script_of_a_client_that_knows_only_the_document(served, stubs):
    pair = served.authority.issue("an-aurae-client", "deployer")
    served.keeper.on_start = lambda started: started.write(b"zzz\n")
    told = await script(
        stubs=str(stubs),
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
