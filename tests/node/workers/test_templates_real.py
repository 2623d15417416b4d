"""Workers that are copies of a template: in cells of their own, with their own limits and randomness."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skerry.model.calls import CallFailure, WorkerExited
from skerry.model.functions import Function
from skerry.model.settings import FunctionSettings
from skerry.node.workers.process_workers import ProcessWorker
from tests.node.workers.ground import Agent, Ground, answered
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

PROBE = """
import os, random, signal, socket, ssl, subprocess, sys, threading, uuid
made = os.urandom(8).hex()
seed = ssl.RAND_bytes(8), random.random()
calls = []
forks = []
os.register_at_fork(after_in_child=lambda: forks.append(os.urandom(4).hex()))
signal.signal(signal.SIGUSR1, lambda *_: calls.append("signal"))

def depth(n):
    return n and 1 + depth(n - 1)

def processes():
    stats = [open(f"/proc/{name}/stat").read() for name in os.listdir("/proc") if name.isdigit()]
    return sorted(int(each.split()[0]) for each in stats if each.rpartition(")")[2].split()[0] != "Z")

def handle(params, context):
    calls.append(1)
    return eval(params)
"""


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    ground = Ground(
        tmp_path, settings=FunctionSettings(spare_workers=1, template_memory_mb=512, template_after_ms=0)
    )
    yield ground
    leftovers = ground.leftovers()
    await ground.clear()
    assert leftovers == []


@pytest.fixture
async def agent(ground: Ground) -> AsyncIterator[Agent]:
    async with ground.agent() as agent:
        yield agent


async def value(worker: ProcessWorker, expression: str) -> Any:
    result = await answered(worker, json.dumps(expression).encode())
    assert result.failure is None, result.error
    return json.loads(result.result)


async def with_template(agent: Agent, function: Function, code: Path) -> ProcessWorker:
    """Its first worker, which has loaded the code; there is a template afterwards."""
    first = await agent.workers.spawn(function, code)
    assert not first.is_copy
    templates = agent.workers.templates
    await eventually(lambda: templates.find(function, code) is not None or templates.refusal(function))
    assert templates.refusal(function) == ""
    return first


async def test_copies_are_workers_in_cells_of_their_own_as_random_as_any(
    ground: Ground, agent: Agent
) -> None:
    code, function = ground.code(main=PROBE), ground.function(environment=("COLOUR=blue",))
    first = await with_template(agent, function, code)
    copies = [await agent.workers.spawn(function, code) for _ in range(2)]
    assert [each.is_copy for each in copies] == [True, True]
    assert copies[0].start_phases[-1][0] == "copy template"
    assert copies[0].runtime == first.runtime

    async def each(expression: str) -> list[Any]:
        return [await value(worker, expression) for worker in (first, *copies)]

    loaded, *copied = await each("made")
    assert copied[0] == copied[1] != loaded  # what was made at import is that of the template
    assert await each("len(calls)") == [2, 2, 2]  # the calls of no other
    for random in ("random.random()", "ssl.RAND_bytes(8).hex()", "str(uuid.uuid1())", "str(uuid.uuid4())"):
        assert len(set(await each(random))) == 3, random
    assert [count > 0 for count in await each("len(forks)")] == [False, True, True]
    assert len({forks[-1] for forks in (await each("forks"))[1:]}) == 2

    uids = [agent.cells.get(worker.cell).uid for worker in (first, *copies)]
    assert await each("os.getuid()") == uids
    assert len(set(uids)) == 3
    assert len(set(await each("socket.gethostname()"))) == 3
    assert await each("processes()") == [[1, 2]] * 3
    same = (
        "[line for line in open('/proc/self/status') if line.startswith(('Cap', 'NoNew', 'Seccomp', 'Sig'))]",
        "sorted(os.listdir('/proc/self/fd'))",
        "open('/proc/self/cgroup').read()",
        "[os.getcwd(), sys.path, dict(os.environ), sys.argv]",
        "depth(900)",
        "threading.active_count()",
    )
    for expression in same:
        expected, *got = await each(expression)
        assert got == [expected, expected], expression
    memory = await value(copies[0], "[line for line in open('/proc/self/maps') if 'memfd:template' in line]")
    assert memory
    assert all(line.split()[1].endswith("p") for line in memory)  # private: written to by copy

    await value(copies[0], "open('/tmp/mine', 'w').write('x')")
    assert [await value(worker, "os.listdir('/tmp')") for worker in copies] == [["mine"], []]
    await value(copies[0], "subprocess.Popen(['sleep', '1000']).pid")
    assert await value(copies[0], "processes()") == [1, 2]
    await value(copies[0], "os.kill(os.getpid(), signal.SIGUSR1)")
    assert await value(copies[0], "'signal' in calls") is True
    for worker in (first, *copies):
        await worker.close()


async def test_a_copy_has_its_own_memory_limit_and_its_end_is_its_own(ground: Ground, agent: Agent) -> None:
    code, function = ground.code(main=PROBE), ground.function()
    first = await with_template(agent, function, code)
    template = agent.workers.templates.find(function, code)
    assert template is not None
    one, other = [await agent.workers.spawn(function, code) for _ in range(2)]
    with pytest.raises(WorkerExited) as over:
        await answered(one, json.dumps("len(bytes(1) * (80 << 20))").encode())
    assert over.value.failure is CallFailure.MEMORY
    assert await value(other, "len(bytes(1) * (16 << 20))") == 16 << 20
    with pytest.raises(WorkerExited):
        await answered(other, json.dumps("os.kill(os.getpid(), signal.SIGKILL)").encode())
    third = await agent.workers.spawn(function, code)
    assert third.is_copy
    assert await value(third, "len(calls)") == 1
    # Nobody can write to what all copies are made of.
    with pytest.raises(PermissionError):
        os.pwrite(template.image, b"x", 0)
    for worker in (first, one, other, third):
        await worker.close()


async def test_a_template_is_of_one_version_and_ends_with_its_function(ground: Ground, agent: Agent) -> None:
    code, function = ground.code(main=PROBE), ground.function()
    workers = [await with_template(agent, function, code)]
    templates = agent.workers.templates
    newer = msgspec.structs.replace(function, version=2)
    code_of_it = ground.code("newer", main=PROBE + "\nversion = 2\n")
    workers.append(await with_template(agent, newer, code_of_it))
    assert await value(workers[-1], "version") == 2
    workers.append(await agent.workers.spawn(newer, code_of_it))
    assert workers[-1].is_copy
    assert await value(workers[-1], "version") == 2
    agent.workers.forget(newer.name)
    assert templates.find(newer, code_of_it) is None
    for worker in workers:
        await worker.close()


async def test_a_template_of_an_earlier_launcher_is_not_used_and_is_made_again(
    ground: Ground, agent: Agent
) -> None:
    code, function = ground.code(main=PROBE), ground.function()
    workers = [await with_template(agent, function, code)]
    assert agent.workers._launcher is not None
    os.kill(agent.workers._launcher.pid, signal.SIGKILL)
    await agent.workers._launcher.failed()
    while (worker := await agent.workers.spawn(function, code)).is_copy:  # made by the earlier one
        workers.append(worker)
    workers.append(worker)
    assert await value(worker, "len(calls)") == 1
    await eventually(lambda: agent.workers.templates.find(function, code) is not None)
    while not (worker := await agent.workers.spawn(function, code)).is_copy:
        workers.append(worker)
    workers.append(worker)
    assert await value(worker, "len(calls)") == 1
    for each in workers:
        await each.close()


OBSTACLES = {
    "threads": (
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "it has started threads",
    ),
    "processes": ("subprocess.Popen(['sleep', '1000'])", "it has started processes"),
    "connections": ("end = socket.socket()", "it keeps files or connections open"),
    "files": ("open('/tmp/x', 'w').close()", "it has written files"),
    "folder": ("os.chdir('/')", "it has changed its folder"),
    "timer": (
        "signal.setitimer(signal.ITIMER_REAL, 1000)",
        "it has changed signals, timers or limits of its process",
    ),
    "shared": ("import mmap; memory = mmap.mmap(-1, 4096)", "it shares memory with other processes"),
    "dies": (
        "os.register_at_fork(before=lambda: os.kill(os.getpid(), 9))",
        "loading 'main.handle': its worker was",
    ),
}


async def test_a_function_that_a_copy_would_break_has_no_template_and_works(
    ground: Ground, agent: Agent
) -> None:
    for name, (line, reason) in OBSTACLES.items():
        code = ground.code(name, main=f"{PROBE}\n{line}\n")
        function = ground.function(name=name)
        for _ in range(2):
            worker = await agent.workers.spawn(function, code)
            assert not worker.is_copy
            assert await value(worker, "made") != ""
            await worker.close()
            await eventually(lambda function=function: agent.workers.templates.refusal(function))
        assert agent.workers.templates.refusal(function).startswith(reason), name
    # An author may decline, for whatever reason.
    code, function = (
        ground.code("declined", main=PROBE),
        ground.function(name="declined", uses_template=False),
    )
    for _ in range(2):
        worker = await agent.workers.spawn(function, code)
        await worker.close()
    assert agent.workers.templates.find(function, code) is None
