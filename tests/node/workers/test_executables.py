"""Functions that are executables, as Serverledge's Go SDK makes them: servers on port 8080 of a worker."""

from __future__ import annotations

import io
import json
import platform
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.model.calls import CallFailure, CodeLoadError, WorkerExited
from skerry.model.resources import Megabytes
from tests.node.workers.ground import Agent, Ground, answered

pytestmark = pytest.mark.root

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
# What an SDK does, in the language that every machine of ours has: one connection after the other.
SERVER = """#!/usr/bin/python3
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Invoke(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        params = asked["Params"] or {}
        if params.get("do") == "exit":
            os._exit(3)
        said = {"Success": params.get("do") != "fail", "Output": "printed\\n"}
        said["Result"] = '{"n":1.0,"big":9007199254740993,"name":"%s"}' % params.get("name")
        body = json.dumps(said).encode() if params.get("do") != "rubbish" else b"rubbish"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

HTTPServer(("", 8080), Invoke).serve_forever()
"""


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    ground = Ground(tmp_path)
    yield ground
    leftovers = ground.leftovers()
    await ground.clear()
    assert leftovers == []


@pytest.fixture
async def agent(ground: Ground) -> AsyncIterator[Agent]:
    async with ground.agent() as agent:
        yield agent


def code_of(ground: Ground, content: bytes, name: str) -> Path:
    folder = ground.code()
    (folder / name).write_bytes(content)
    (folder / name).chmod(0o644)
    return folder


def zipped(name: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(name, SERVER)
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"handler_{ARCHITECTURE}", SERVER.encode()),
        ("handler", SERVER.encode()),
        ("function.zip", zipped(f"handler_{ARCHITECTURE}")),
    ],
)
async def test_an_executable_is_started_once_and_called_as_its_sdk_has_it(
    ground: Ground, agent: Agent, name: str, content: bytes
) -> None:
    code = code_of(ground, content, name)
    function = ground.function("", runtime="go125", memory=Megabytes(128))
    worker = await agent.workers.spawn(function, code)
    assert worker.runtime == agent.workers.describe("go") == "a program of its own"
    for _ in range(2):
        answer = await worker.call(b'{"name": "ann"}', wants_output=True, within_s=20)
        assert (answer.failure, answer.output) == (None, "printed\n")
        assert answer.result == b'{"n":1.0,"big":9007199254740993,"name":"ann"}'
    for do, said in (("fail", "did not succeed"), ("rubbish", "'rubbish'")):
        failed = await answered(worker, json.dumps({"do": do}).encode())
        assert failed.failure is CallFailure.HANDLER
        assert said in failed.error
    with pytest.raises(WorkerExited):
        await answered(worker, b'{"do": "exit"}')
    await worker.close()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("main.go", b"package main", "the code must hold handler_"),
        ("function.zip", b"no zip", "cannot be unpacked"),
        ("handler", b"\x7fELF rubbish", "does not start"),
        ("handler", b"#!/bin/sh\nexit 4\n", "the program ended with 4"),
    ],
)
async def test_what_is_no_such_executable_is_refused_with_the_reason(
    ground: Ground, agent: Agent, name: str, content: bytes, said: str
) -> None:
    code = code_of(ground, content, name)
    with pytest.raises(CodeLoadError, match=said):
        await agent.workers.spawn(ground.function("", runtime="go125"), code)
