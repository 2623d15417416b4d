"""What a call starts and leaves in its worker is gone when the next call begins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skerry.model.functions import Function
from skerry.model.resources import Megabytes
from skerry.node.workers import python_leftovers
from skerry.node.workers.process_workers import ProcessWorker
from tests.node.workers.ground import Agent, Ground, answered
from tests.support import leaks
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

# `daemon` is a child that left its session and its parent; `others` are those that live besides init and us.
PYTHON = """
import contextlib, os, signal, subprocess, sys, threading, time
def daemon():
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.write(writing, str(os.getpid()).encode())
            while True:
                time.sleep(600)
        os._exit(0)
    os.wait()
    os.close(writing)
    return int(os.read(reading, 20))
def others():
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            gone = contextlib.suppress(FileNotFoundError, ProcessLookupError)
            with gone, open(f"/proc/{name}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] not in "ZX":
                    found.append(int(name))
    return found
KEPT = KEPT_AT_LOAD
def handle(params):
    return eval(params)
"""
NODE = """
const fs = require('fs');
const { spawn, spawnSync } = require('child_process');
function daemon() {
  const script = "trap '' TERM HUP; while :; do sleep 600; done";
  return Number(`${spawnSync('sh', ['-c', `setsid sh -c "${script}" >/dev/null 2>&1 & echo $!`]).stdout}`);
}
const child = () => spawn('sleep', ['600'], { detached: true, stdio: 'ignore' }).pid;
function runs(pid) {
  try {
    return !'ZX'.includes(`${fs.readFileSync(`/proc/${pid}/stat`)}`.split(') ').pop()[0]);
  } catch (error) {
    if (['ENOENT', 'ESRCH'].includes(error.code)) return false;
    throw error;
  }
}
const others = () => fs.readdirSync('/proc').map(Number)
  .filter((pid) => pid > 1 && pid !== process.pid && runs(pid));
const KEPT = KEPT_AT_LOAD;
exports.handle = (params) => eval(params);
"""


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    ground = Ground(tmp_path / "data")
    ground.folder.mkdir(mode=0o700)
    yield ground
    leftovers = ground.leftovers()
    await ground.clear()
    assert leftovers == []


@pytest.fixture
async def agent(ground: Ground) -> AsyncIterator[Agent]:
    async with ground.agent() as agent:
        yield agent


@pytest.fixture(params=["python311", "nodejs20"])
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def spawn(
    ground: Ground, agent: Agent, runtime: str, at_load: str = "null", **more: Any
) -> ProcessWorker:
    if runtime == "python311":
        at_load = at_load.replace("null", "None")
        code = ground.code(main=PYTHON.replace("KEPT_AT_LOAD", at_load))
    else:
        code = ground.code(main_js=NODE.replace("KEPT_AT_LOAD", at_load))
    function: Function = ground.function(runtime=runtime, memory=Megabytes(256), **more)
    return await agent.workers.spawn(function, code)


async def requested(worker: ProcessWorker, expression: str) -> Any:
    answer = await answered(worker, json.dumps(expression).encode())
    assert answer.failure is None, answer.error
    return json.loads(answer.result)


async def test_a_process_that_a_call_leaves_behind_is_gone_at_the_next_call(
    ground: Ground, agent: Agent, runtime: str
) -> None:
    worker = await spawn(ground, agent, runtime)
    for _ in range(3):
        assert await requested(worker, "daemon()") > 1
        assert await requested(worker, "others()") == []
    start = "subprocess.Popen(['sleep', '600']).pid" if runtime == "python311" else "child()"
    assert await requested(worker, start) > 1
    assert await requested(worker, "others()") == []
    assert worker.is_alive
    await worker.close()


async def test_what_was_started_while_the_function_was_loaded_stays_with_what_comes_of_it(
    ground: Ground, agent: Agent, runtime: str
) -> None:
    worker = await spawn(ground, agent, runtime, at_load="daemon()")
    helper = await requested(worker, "KEPT")
    for _ in range(2):
        leftovers = await requested(worker, "daemon()")
        now = await requested(worker, "others()")
        assert helper in now
        assert leftovers not in now
    await worker.close()


async def test_calls_at_once_kill_what_they_left_when_the_last_has_ended(
    ground: Ground, agent: Agent
) -> None:
    worker = await spawn(ground, agent, "python311", max_concurrency=4)
    await requested(worker, "os.mkfifo('/tmp/go')")
    waiting = asyncio.create_task(requested(worker, "open('/tmp/go').read()"))
    await eventually(lambda: worker.in_flight == 1)
    leftovers = await requested(worker, "daemon()")
    assert leftovers in await requested(worker, "others()"), "a call that still runs may need it"
    await requested(worker, "open('/tmp/go', 'w').write('go')")
    assert await waiting == "go"
    assert await requested(worker, "others()") == []
    await worker.close()


async def test_a_function_that_closes_our_files_is_watched_all_the_same(ground: Ground, agent: Agent) -> None:
    worker = await spawn(ground, agent, "python311")
    await requested(worker, "os.closerange(4, 100)")
    await requested(worker, "daemon()")
    assert await requested(worker, "others()") == []
    await worker.close()


@pytest.mark.parametrize("max_concurrency", [1, 4])
async def test_a_process_that_is_started_between_calls_is_gone_at_the_next_one(
    ground: Ground, agent: Agent, runtime: str, max_concurrency: int
) -> None:
    at_load = (
        "signal.signal(signal.SIGUSR2, lambda *_: subprocess.Popen(['sleep', '601']))"
        if runtime == "python311"
        else "process.on('SIGUSR2', () => spawn('sleep', ['601'])) && null"
    )
    worker = await spawn(ground, agent, runtime, at_load=at_load, max_concurrency=max_concurrency)
    assert await requested(worker, "others()") == []
    (pid,) = (each.pid for view in agent.cells.list() for each in view.executables if catches(each.pid))

    def has_started() -> bool:
        os.kill(pid, signal.SIGUSR2)  # again if the worker was still killing what the call before had left
        return b"sleep\x00601\x00" in commands_below(pid)

    await eventually(has_started)
    assert await requested(worker, "others()") == []
    await worker.close()


def catches(pid: int) -> bool:
    """Whether it has a handler for SIGUSR2; spare workers have none."""
    (caught,) = re.findall(r"^SigCgt:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (signal.SIGUSR2 - 1) & 1)


def commands_below(pid: int) -> list[bytes]:
    """The command lines of its children."""
    found = []
    for child in leaks.children_of(pid):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(Path(f"/proc/{child}/cmdline").read_bytes())
    return found


def test_outside_of_a_cell_nothing_is_ever_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not python_leftovers.is_confined()
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid))
    python_leftovers.LeftoverProcesses().kill()
    assert killed == []
