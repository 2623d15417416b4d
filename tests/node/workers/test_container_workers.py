"""Workers that are containers: what becomes of a call, with a server and a process in their place."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.calls import CallFailure, CallResult, CodeLoadError, WorkerExited
from skerry.model.cells import ExitStatus, OutputChannel
from skerry.model.containers import ContainerSpec, ContainerState, ContainerView
from skerry.model.images import ImageId
from skerry.model.settings import FunctionSettings
from skerry.node.containers.containers import Containers
from skerry.node.logs.readers import RingReader
from skerry.node.logs.rings import RingWriter
from skerry.node.workers.container_workers import ContainerWorker
from skerry.node.workers.port_connections import PortConnections
from tests.node.workers.servers import Process, Server, http, serving
from tests.support.shares import free_port
from tests.support.waiting import eventually

OK = http(json.dumps({"Success": True, "Result": "[1]", "Output": "hi"}).encode())


class FakeContainers:
    """One container, whose process is a test's."""

    def __init__(self, folder: Path, process: Process) -> None:
        self._folder = folder
        self._process = process
        self.exit: ExitStatus | None = ExitStatus(at=1.0, code=3)
        self.removed = 0
        self.failing: list[errors.SkerryError] = []

    async def wait(self, name: str) -> ExitStatus:
        if self.exit is None:
            raise errors.FailedPrecondition("nobody knows")
        return self.exit

    def logs(self, name: str, stream: OutputChannel) -> RingReader:
        return RingReader(self._folder, stream)

    async def stop(self, name: str, *, grace_s: float) -> None:
        self._process.kill()

    async def remove(self, name: str, *, force: bool) -> None:
        if self.failing:
            raise self.failing.pop()
        if self.removed:
            raise errors.NotFound("gone")
        self.removed += 1

    def print(self, text: bytes) -> None:
        folder = os.open(self._folder, os.O_RDONLY)
        ring = RingWriter(folder, OutputChannel.STDERR, max_bytes=4096)
        ring.write(text, time.time_ns())
        ring.close()
        os.close(folder)


@pytest.fixture
def process() -> Iterator[Process]:
    process = Process()
    yield process
    process.kill()


@pytest.fixture
def containers(tmp_path: Path, process: Process) -> FakeContainers:
    return FakeContainers(tmp_path, process)


@asynccontextmanager
async def worker_at(
    server: Server, containers: FakeContainers, **settings: float
) -> AsyncIterator[ContainerWorker]:
    spec = ContainerSpec("fn-1", "example.org/sums:1", inside="functions")
    view = ContainerView(
        spec, ImageId("sha256:" + "ab" * 32), ContainerState.RUNNING, 0.0, address="127.0.0.1"
    )
    clock = SystemClock()
    door = PortConnections(containers._process.pidfd(), "127.0.0.1", server.port, clock)
    given = FunctionSettings(**{"max_result_bytes": 1024, "max_output_bytes": 1024, **settings})  # type: ignore[arg-type]
    worker = ContainerWorker(cast(Containers, containers), view, door, given, clock)
    try:
        yield worker
    finally:
        await worker.close()
        await asyncio.sleep(0)


async def call(worker: ContainerWorker, within_s: float = 10.0) -> CallResult:
    return await worker.call(b'{"n": 1}', wants_output=True, within_s=within_s)


async def test_a_call_is_one_post_with_its_parameters(containers: FakeContainers) -> None:
    async with serving(OK) as server, worker_at(server, containers) as worker:
        await worker.listens()
        answer = await call(worker)
        assert (answer.result, answer.output, answer.failure) == (b"[1]", "hi", None)
        assert json.loads(server.bodies[0])["Params"] == {"n": 1}
        assert worker.is_alive
        assert worker.runtime == "image example.org/sums:1 (sha256:abababababab)"


async def test_a_server_of_one_connection_at_a_time_is_called_again_and_again(
    containers: FakeContainers,
) -> None:
    async with serving(OK, at_once=1) as server, worker_at(server, containers) as worker:
        await worker.listens()
        for _ in range(3):
            assert (await call(worker)).result == b"[1]"
        assert server.connections == 2  # one to see that it listens, one for all calls


async def test_calls_run_side_by_side(containers: FakeContainers) -> None:
    async with serving(OK, None) as server, worker_at(server, containers) as worker:
        assert (await call(worker)).failure is None
        hanging = [asyncio.ensure_future(call(worker, 60)) for _ in range(3)]
        await eventually(lambda: len(server.bodies) == 4)
        await worker.close()
        for each in hanging:
            with pytest.raises(WorkerExited, match="ended"):
                await each


async def test_a_call_that_is_slow_is_a_timeout_and_harms_no_other(containers: FakeContainers) -> None:
    async with serving(None, OK) as server, worker_at(server, containers) as worker:
        answer = await call(worker, 0.05)
        assert answer.failure is CallFailure.TIMEOUT
        assert "0.05 s" in answer.error
        assert (await call(worker)).result == b"[1]"


async def test_a_connection_that_is_cut_is_a_failure_of_that_call_alone(containers: FakeContainers) -> None:
    async with serving(b"", OK, ends=True) as server, worker_at(server, containers) as worker:
        answer = await call(worker)
        assert answer.failure is CallFailure.HANDLER
        assert "closed before the reply was complete" in answer.error
        assert worker.is_alive
        assert (await call(worker)).result == b"[1]"


async def test_a_reply_that_is_too_long_is_refused(containers: FakeContainers) -> None:
    async with serving(http(bytes(200_000))) as server, worker_at(server, containers) as worker:
        answer = await call(worker)
        assert answer.failure is CallFailure.RESULT
        assert "functions.max_result_bytes" in answer.error


@pytest.mark.parametrize(
    ("how", "failure", "reported"),
    [
        (ExitStatus(at=1.0, code=3), CallFailure.DIED, "with exit code 3"),
        (ExitStatus(at=1.0, signal=11), CallFailure.DIED, "by signal 11"),
        (ExitStatus(at=1.0, signal=9, oom=True), CallFailure.MEMORY, "killed for memory"),
        (None, CallFailure.DIED, "exit status is unknown"),
    ],
)
async def test_a_container_that_ends_in_a_call_is_told_with_how_and_its_last_words(
    containers: FakeContainers, process: Process, how: ExitStatus | None, failure: CallFailure, reported: str
) -> None:
    containers.exit = how
    containers.print(b"of a call before\n")
    ended = asyncio.Event()
    async with serving(None) as server, worker_at(server, containers) as worker:
        worker.on_end(ended.set)
        calling = asyncio.ensure_future(call(worker))
        await eventually(lambda: len(server.bodies) == 1)
        containers.print(b"panic: no\n")
        process.kill()
        with pytest.raises(WorkerExited) as gone:
            await calling
        assert (gone.value.failure, gone.value.output) == (failure, "panic: no\n")
        assert reported in gone.value.error
        assert not worker.is_alive
        assert ended.is_set()
        with pytest.raises(WorkerExited):
            await call(worker)
        assert len(server.bodies) == 1  # whoever has the address now is not called


async def test_an_end_is_told_also_to_whoever_asks_late_and_once(
    containers: FakeContainers, process: Process
) -> None:
    reported: list[int] = []
    async with serving(OK) as server, worker_at(server, containers) as worker:
        process.kill()
        worker.on_end(lambda: reported.append(1))
        await eventually(lambda: reported == [1])
        await worker.close()
    assert reported == [1]


async def test_a_worker_that_is_closed_does_not_tell_of_an_end(containers: FakeContainers) -> None:
    reported: list[int] = []
    async with serving(OK) as server, worker_at(server, containers) as worker:
        worker.on_end(lambda: reported.append(1))
        await worker.close()
        await asyncio.sleep(0)
        worker.on_end(lambda: reported.append(1))
        await asyncio.sleep(0)
    assert reported == []


async def test_a_container_whose_server_has_gone_is_of_no_more_use(containers: FakeContainers) -> None:
    port = free_port()
    reported: list[int] = []
    async with worker_at(Server(port), containers) as worker:
        worker.on_end(lambda: reported.append(1))
        with pytest.raises(WorkerExited, match="nothing listens on port"):
            await call(worker)
        assert not worker.is_alive
        assert reported == [1]


async def test_a_container_that_does_not_listen_in_time_is_not_loaded(containers: FakeContainers) -> None:
    port = free_port()
    containers.print(b"still thinking\n")
    async with worker_at(Server(port), containers, image_start_s=0.05) as worker:
        with pytest.raises(CodeLoadError, match=r"in 0\.05 s") as failed:
            await worker.listens()
        assert failed.value.output == "still thinking\n"


async def test_a_container_that_ends_before_it_listens_is_not_loaded(
    containers: FakeContainers, process: Process
) -> None:
    port = free_port()
    async with worker_at(Server(port), containers) as worker:
        loading = asyncio.ensure_future(worker.listens())
        await asyncio.sleep(0)
        process.kill()
        with pytest.raises(CodeLoadError, match="before it listened on port 8080: with exit code 3"):
            await loading


async def test_a_close_goes_on_until_the_container_is_gone(
    containers: FakeContainers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.node.workers.container_workers._RETRY_S", 0.0)
    containers.failing = [errors.Unavailable("busy"), errors.Unavailable("busy")]
    async with serving(OK) as server, worker_at(server, containers) as worker:
        await asyncio.gather(worker.close(), worker.close())
        assert containers.removed == 1
        assert not worker.is_alive
