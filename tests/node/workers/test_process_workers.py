"""Workers in their cells: made, called, ended, whatever the function does; and nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.calls import CallFailure, CodeLoadError, WorkerExited
from skerry.model.cells import Cell, CellLimits, CellOwner, Sandbox
from skerry.model.containers import NetworkMode
from skerry.model.ids import CellName
from skerry.model.resources import Megabytes, Millicores
from skerry.model.settings import NodeSettings
from skerry.node.cells import executables
from skerry.node.cells.cells import Cells
from skerry.node.cgroups.protocol import INIT_LEAF
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.client import LauncherClient
from skerry.node.launcher.specs import ZygoteSpec
from skerry.node.workers.process_workers import CELL, ProcessWorker
from tests.node.cells.real import is_alive
from tests.node.workers.ground import NO_NETWORK, Agent, Ground, answered
from tests.support.groups import remove_groups
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.root

ECHO = "def handle(params, context):\n    return params\n"


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


def cell_of(worker: ProcessWorker) -> CellName:
    return CellName(f"{CELL}/w{worker.id}")


async def test_a_python_function_is_called_and_its_worker_goes_without_a_trace(
    ground: Ground, agent: Agent
) -> None:
    code = ground.code(main=ECHO)
    worker = await agent.workers.spawn(ground.function(), code)
    assert worker.is_alive
    assert worker.init_s > 0
    assert worker.runtime == agent.workers.describe("python")
    for number in range(3):
        params = json.dumps({"number": number}).encode()
        assert (await answered(worker, params)).result == params
    assert cell_of(worker) in [view.cell.name for view in agent.cells.list()]
    pids = ground.groups.pids(cell_of(worker))
    await worker.close()
    await worker.close()
    assert not worker.is_alive
    assert cell_of(worker) not in [view.cell.name for view in agent.cells.list()]
    assert not any(is_alive(pid) for pid in pids)


async def test_a_node_function_is_called_and_takes_a_process_that_was_blank(
    ground: Ground, agent: Agent
) -> None:
    code = ground.code(main_js="exports.handle = async (params) => { console.log('hi'); return params; }")
    function = ground.function(runtime="nodejs17", memory=Megabytes(256))
    workers = [await agent.workers.spawn(function, code) for _ in range(2)]
    assert workers[0].runtime == agent.workers.describe("nodejs")
    assert [(await answered(worker, b'[1,"x"]')).result for worker in workers] == [b'[1,"x"]'] * 2

    async def printed() -> list[tuple[str, str]]:
        return [(line.text, line.stream) async for line in agent.workers.logs(function.name)]

    async def is_there() -> bool:
        return await printed() == [("hi", "stdout")] * 2

    await eventually(is_there)
    await asyncio.gather(*(worker.close() for worker in workers))


async def test_a_worker_is_held_to_what_its_function_asks_for(ground: Ground, agent: Agent) -> None:
    function = ground.function(memory=Megabytes(96), cpu=Millicores(300))
    worker = await agent.workers.spawn(function, ground.code(main=ECHO))
    held = ground.groups.read_limits(cell_of(worker))
    assert held == CellLimits(
        memory=Megabytes(96), cpu_quota=Millicores(300), pids=ground.settings.worker_pids
    )
    assert agent.cells.get(cell_of(worker)).cell.limits == held
    above = ground.groups.read_limits(CELL).memory
    assert above is not None
    assert above >= ground.memory_mb
    await worker.close()


async def test_the_cpu_quota_of_a_worker_is_on_when_its_code_is_loaded_and_not_before(ground: Ground) -> None:
    quotas: dict[str, list[int | None]] = {}

    def failpoint(step: str) -> None:
        if step in ("spawn.mounted", "spawn.loaded"):
            cells = [name for name in ground.groups.cells() if name.startswith(f"{CELL}/")]
            quotas[step] = [ground.groups.read_limits(name).cpu_quota for name in cells]

    async with ground.agent(failpoint) as agent:
        function = ground.function(memory=Megabytes(96), cpu=Millicores(50))
        worker = await agent.workers.spawn(function, ground.code(main=ECHO))
        assert 50 not in quotas["spawn.mounted"]
        assert 50 in quotas["spawn.loaded"]
        await worker.close()


async def test_thirty_cold_starts_at_once(ground: Ground, agent: Agent) -> None:
    code = ground.code(main=ECHO)
    functions = [ground.function(name=f"f{number}", memory=Megabytes(32)) for number in range(30)]
    workers = await asyncio.gather(*(agent.workers.spawn(function, code) for function in functions))
    answers = await asyncio.gather(
        *(answered(worker, str(number).encode()) for number, worker in enumerate(workers))
    )
    assert [int(answer.result) for answer in answers] == list(range(30))
    await asyncio.gather(*(worker.close() for worker in workers))
    await eventually(lambda: len(agent.cells.list()) <= 1 + 2 * ground.settings.spare_workers)


async def gone(worker: ProcessWorker, params: bytes = b"null") -> WorkerExited:
    with pytest.raises(WorkerExited) as caught:
        await answered(worker, params)
    return caught.value


async def test_a_worker_that_eats_its_memory_is_told_apart_from_one_that_died(
    ground: Ground, agent: Agent
) -> None:
    code = ground.code(
        main="def handle(params):\n    print('eating', flush=True)\n    return len(bytearray(1 << 30))\n"
    )
    ended = asyncio.Event()
    worker = await agent.workers.spawn(ground.function(), code)
    worker.on_end(ended.set)
    reason = await gone(worker)
    assert reason.failure is CallFailure.MEMORY
    assert "more than its 64 MB" in reason.error
    assert reason.output == "eating\n"
    await ended.wait()
    assert not worker.is_alive
    await worker.close()


@pytest.mark.parametrize(
    ("deed", "reported"),
    [
        ("os._exit(3)", "exited with 3"),
        ("os.kill(os.getpid(), 11)", "was ended by SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("os.closerange(3, 64); time.sleep(60)", "ended in the middle of it"),
        ("os.write(3, bytes(64)); time.sleep(60)", "invalid reply"),
    ],
)
async def test_why_a_worker_ended_is_told_with_what_it_said(
    ground: Ground, agent: Agent, deed: str, reported: str
) -> None:
    lines = [
        "import os, sys, time",
        "def handle(params):",
        "    print('last words', file=sys.stderr, flush=True)",
    ]
    code = ground.code(main="\n".join([*lines, f"    {deed}", ""]))
    worker = await agent.workers.spawn(ground.function(), code)
    reason = await gone(worker)
    assert reason.failure is CallFailure.DIED
    assert reported in reason.error
    assert reason.output == "last words\n"
    assert (await gone(worker)).error == reason.error  # and for whoever comes later
    await worker.close()


async def test_a_call_that_takes_too_long_ends_a_worker_of_one_call_at_a_time(
    ground: Ground, agent: Agent
) -> None:
    code = ground.code(main="import time\ndef handle(params):\n    time.sleep(params)\n")
    worker = await agent.workers.spawn(ground.function(), code)
    ended = asyncio.Event()
    worker.on_end(ended.set)
    answer = await answered(worker, b"600", within_s=0.05)
    assert answer.failure is CallFailure.TIMEOUT
    await ended.wait()
    assert not worker.is_alive
    await worker.close()


async def test_a_worker_that_ignores_being_asked_is_killed_at_once(ground: Ground) -> None:
    ground.node_settings = NodeSettings(stop_grace_s=3600)  # that other executables have
    code = ground.code(
        main="import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
        "def handle(params):\n    time.sleep(600)\n"
    )
    async with ground.agent() as agent:
        worker = await agent.workers.spawn(ground.function(), code)
        call = asyncio.create_task(gone(worker))
        await eventually(lambda: worker.in_flight == 1)
        async with asyncio.timeout(PATIENCE_S):
            await worker.close()
        assert "was ended in the middle" in (await call).error


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("def handle(:\n", "SyntaxError"),
        ("import nowhere\n", "nowhere"),
        ("x = 1\n", "has no 'handle'"),
        ("import os\nos._exit(7)\n", "exited with 7"),
        ("x = bytearray(1 << 30)\n", "memory"),
    ],
)
async def test_code_that_cannot_be_loaded_is_refused_with_the_cause(
    ground: Ground, agent: Agent, text: str, reported: str
) -> None:
    with pytest.raises(CodeLoadError, match=reported):
        await agent.workers.spawn(ground.function(), ground.code(main=text))
    await eventually(lambda: len(agent.cells.list()) == 1 + ground.settings.spare_workers)


async def test_a_function_with_too_little_memory_for_its_runtime_is_refused(
    ground: Ground, agent: Agent
) -> None:
    code = ground.code(main_js="exports.handle = () => 1")
    function = ground.function(runtime="nodejs17", memory=Megabytes(4))
    with pytest.raises(CodeLoadError, match="memory"):
        await agent.workers.spawn(function, code)


async def test_a_fork_bomb_stops_at_its_limit_and_goes_with_its_worker(
    ground: Ground, tmp_path: Path
) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, worker_pids=24)
    code = ground.code(
        # While it is loaded: what a call leaves would not be there any more.
        main="import os, time\nmade = 0\ntry:\n    while True:\n        if os.fork() == 0:\n"
        "            time.sleep(600)\n        made += 1\nexcept BlockingIOError:\n    pass\n"
        "def handle(params):\n    return made\n"
    )
    async with ground.agent() as agent:
        worker = await agent.workers.spawn(ground.function(), code)
        created = int((await answered(worker)).result)
        assert 10 <= created < 24
        pids = ground.groups.pids(cell_of(worker))
        assert len(pids) == created + 2
        await worker.close()
        assert not any(is_alive(pid) for pid in pids)


async def test_a_worker_that_prints_without_end_stalls_nobody_and_keeps_its_bound(ground: Ground) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, log_bytes=256 * 1024)
    code = ground.code(
        main="import os\ndef handle(params):\n    for _ in range(params):\n"
        "        os.write(1, b'x' * 65535 + b'\\n')\n"
    )
    async with ground.agent() as agent:
        worker = await agent.workers.spawn(ground.function(), code)
        assert (await answered(worker, b"100")).failure is None
        await worker.close()
    stored = sum(path.stat().st_size for path in (ground.folder / "logs").rglob("*") if path.is_file())
    assert 0 < stored <= 256 * 1024


async def test_without_a_network_a_function_that_wants_one_is_refused_with_the_reason(
    ground: Ground, agent: Agent
) -> None:
    with pytest.raises(errors.Unavailable, match=NO_NETWORK):
        await agent.workers.spawn(ground.function(network=NetworkMode.BRIDGE), ground.code(main=ECHO))


async def test_a_runtime_of_an_unknown_kind_is_refused(ground: Ground, agent: Agent) -> None:
    with pytest.raises(errors.Unavailable, match="cobol"):
        await agent.workers.spawn(ground.function(runtime="cobol60"), ground.code(main=ECHO))


async def test_a_blank_worker_that_died_is_not_handed_out(ground: Ground, agent: Agent) -> None:
    code = ground.code(main=ECHO)
    await agent.workers.prepare(ground.function(), force=False)

    def blank() -> list[int]:
        return [state.pid for view in agent.cells.list() for state in view.executables if state.exit is None]

    (pid,) = await eventually(blank)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: blank() == [])
    worker = await agent.workers.spawn(ground.function(), code)
    assert (await answered(worker, b"1")).result == b"1"
    await worker.close()


async def test_there_is_no_zygote_before_the_first_worker(ground: Ground, agent: Agent) -> None:
    assert agent.workers._launcher is None
    code = ground.code(main=ECHO)
    workers = await asyncio.gather(*(agent.workers.spawn(ground.function(), code) for _ in range(3)))
    assert agent.workers._launcher is not None
    for worker in workers:
        assert (await answered(worker, b"1")).result == b"1"
        await worker.close()


async def test_a_python_that_does_not_start_as_a_zygote_is_told_to_who_calls(
    ground: Ground, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = LauncherClient.start

    async def failing(zygote: ZygoteSpec | None = None, *, view: HostView) -> LauncherClient:
        if zygote is not None:
            raise errors.Unavailable("the launcher of cells does not start")
        return await start(view=view)

    monkeypatch.setattr(LauncherClient, "start", failing)
    code = ground.code(main=ECHO)
    for _ in range(2):
        with pytest.raises(errors.Unavailable, match="launcher of cells does not start"):
            await agent.workers.spawn(ground.function(), code)
    with pytest.raises(errors.Unavailable, match="launcher of cells does not start"):
        agent.workers.describe("python")


async def test_a_worker_goes_on_without_its_zygote_and_its_end_is_explained(
    ground: Ground, agent: Agent
) -> None:
    code = ground.code(main="import os\ndef handle(params):\n    return os._exit(7) if params else 1\n")
    worker = await agent.workers.spawn(ground.function(), code)
    launcher = agent.workers._launcher
    assert launcher is not None
    os.kill(launcher.pid, signal.SIGKILL)
    await launcher.failed()
    assert (await answered(worker)).result == b"1"
    with pytest.raises(WorkerExited, match="exited with 7"):
        await answered(worker, b"1")
    await worker.close()


async def test_a_worker_that_cannot_go_on_does_not_keep_others_from_their_start(
    ground: Ground, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, add_leaf = ground.groups, ground.groups.add_leaf
    frozen: list[str] = []

    def add(cell: CellName, leaf: str) -> None:
        add_leaf(cell, leaf)
        if leaf != INIT_LEAF and not frozen:
            frozen.append(f"{cell}/{leaf}")
            groups._membership.freeze(frozen[0])

    monkeypatch.setattr(groups, "add_leaf", add)
    code = ground.code(main="def handle(params): return 1")
    starting = [asyncio.create_task(agent.workers.spawn(ground.function(), code)) for _ in range(2)]
    started, waiting = await asyncio.wait(starting, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    assert started
    groups._membership.thaw(frozen[0])
    for each in [*started, *waiting]:
        worker = await each
        assert (await answered(worker)).result == b"1"
        await worker.close()


async def test_nothing_of_a_python_worker_is_recorded_on_disk(ground: Ground, agent: Agent) -> None:
    worker = await agent.workers.spawn(ground.function(), ground.code(main="def handle(params): return 1"))
    cells = {path.name for path in (ground.folder / "cells").iterdir()}
    assert agent.cells.get(worker.cell).executables
    assert cells == {"@functions"}
    await worker.close()


async def test_the_init_of_a_python_worker_is_a_few_pages_and_has_no_privileges(
    ground: Ground, agent: Agent
) -> None:
    worker = await agent.workers.spawn(ground.function(), ground.code(main="def handle(params): return 1"))
    pids = ground.groups.pids(worker.cell, "_init")
    assert len(pids) == 1
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pids[0]}/status").read_text().splitlines())
    assert int(status["VmRSS"].split()[0]) < 100
    assert {status[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapInh")} == {"0" * 16}
    assert os.listdir(f"/proc/{pids[0]}/fd") == ["0", "1", "2"]
    await worker.close()


async def test_output_is_moved_by_the_cell_of_the_worker_and_only_once_there_is_some(
    ground: Ground, agent: Agent
) -> None:
    code = ground.code(main="def handle(params):\n    if params: print(params)\n")
    worker = await agent.workers.spawn(ground.function(), code)
    await answered(worker)
    init = ground.groups.pids(worker.cell, "_init")
    for number in range(1, 4):
        await answered(worker, str(number).encode())
    folder = ground.folder / "logs" / "hello"
    await eventually(lambda: b"3\n" in b"".join(path.read_bytes() for path in folder.glob("*/stdout-*")))
    (moving,) = set(ground.groups.pids(worker.cell, "_init")) - set(init)
    assert Path(f"/proc/{moving}/comm").read_text() == "skerry-output\n"
    await worker.close()


async def test_a_zygote_that_was_killed_is_replaced(ground: Ground, agent: Agent) -> None:
    code = ground.code(main=ECHO)
    first = await agent.workers.spawn(ground.function(), code)
    launcher = agent.workers._launcher
    assert launcher is not None
    os.kill(launcher.pid, signal.SIGKILL)
    await launcher.failed()
    workers = await asyncio.gather(*(agent.workers.spawn(ground.function(), code) for _ in range(3)))
    for worker in (first, *workers):
        assert (await answered(worker, b"1")).result == b"1"
        await worker.close()


STEPS = [
    "allocate.group",
    "init.group",
    "init.made",
    "blank.started",
    "spawn.limited",
    "spawn.mounted",
]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_start_that_fails_or_is_given_up_at_any_step_leaves_nothing(
    ground: Ground, is_cancelled: bool
) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, spare_workers=0)
    spawning: asyncio.Task[ProcessWorker] | None = None
    fatal = ""

    def failpoint(name: str) -> None:
        if name == fatal:
            if not is_cancelled:
                raise errors.Internal("the machine fails")
            assert spawning is not None
            spawning.cancel()

    async with ground.agent(failpoint) as agent:
        code = ground.code(main=ECHO)
        for fatal in (*STEPS, *([] if is_cancelled else ["spawn.loaded"])):  # noqa: B007 - `failpoint` looks at it
            spawning = asyncio.create_task(agent.workers.spawn(ground.function(), code))
            with pytest.raises(asyncio.CancelledError if is_cancelled else errors.Unavailable):
                await spawning
            assert [view.cell.name for view in agent.cells.list()] == [CELL]
            assert ground.groups.pids(CELL) == []
        fatal = ""
        worker = await agent.workers.spawn(ground.function(), code)
        assert (await answered(worker, b"1")).result == b"1"


async def test_a_worker_that_cannot_be_confined_leaves_no_init_and_no_cell(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, spare_workers=0)
    monkeypatch.setattr(executables, "Sandbox", lambda: Sandbox(folder="/nowhere"))
    async with ground.agent() as agent:
        with pytest.raises(errors.Unavailable, match="cannot change folder"):
            await agent.workers.spawn(ground.function(), ground.code(main=ECHO))
        assert [view.cell.name for view in agent.cells.list()] == [CELL]
        assert ground.groups.pids(CELL) == []


async def test_a_prestarted_worker_whose_cell_somebody_has_removed_is_passed_over(ground: Ground) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, spare_workers=0)
    limited = 0

    def failpoint(name: str) -> None:
        nonlocal limited
        limited += name == "spawn.limited"
        if name == "spawn.limited" and limited == 1:
            raise errors.NotFound("the cell has no cgroup on this host")

    async with ground.agent(failpoint) as agent:
        worker = await agent.workers.spawn(ground.function(), ground.code(main=ECHO))
        assert (await answered(worker, b"1")).result == b"1"
        assert limited == 2
        assert len(agent.cells.list()) == 2, "that of all, and its own"


@pytest.mark.parametrize("kills", [True, False], ids=["killed", "moved out"])
async def test_the_cell_of_all_workers_is_made_again_when_somebody_has_removed_it(
    ground: Ground, agent: Agent, kills: bool
) -> None:
    code = ground.code(main=ECHO)
    before = await agent.workers.spawn(ground.function(), code)
    await remove_groups(ground.root, CELL, kills=kills)
    await agent.cells.end_ungrouped()
    await eventually(lambda: not before.is_alive)
    worker = await agent.workers.spawn(ground.function(), code)
    assert (await answered(worker, b"1")).result == b"1"
    assert ground.groups.pids(CELL)
    for each in (before, worker):
        await each.close()


async def test_a_cell_of_a_client_called_functions_is_left_alone(ground: Ground) -> None:
    name = CellName("functions")
    async with ground.agent() as agent:
        await agent.cells.allocate(Cell(name))
    async with ground.agent() as agent:
        assert agent.cells.get(name).cell == Cell(name)
        await agent.cells.free(name)


@pytest.mark.parametrize("owner", [None, CellOwner.FUNCTIONS], ids=["without an owner", "with its owner"])
async def test_what_an_earlier_version_left_of_workers_goes(ground: Ground, owner: CellOwner | None) -> None:
    launcher = await LauncherClient.start()
    earlier = await Cells.open(
        ground.folder / "cells", ground.groups, launcher, NodeSettings(), SystemClock()
    )
    for name in (CellName("functions"), CellName("functions/w1")):
        await earlier.allocate(Cell(name, owner=owner))
        record = earlier._entry(name).record
        earlier._deps.records.change_cell(msgspec.structs.replace(record, is_marked=False))
    await earlier.close()
    await launcher.stop()
    async with ground.agent() as agent:
        assert "functions" not in {view.cell.name.partition("/")[0] for view in agent.cells.list()}
