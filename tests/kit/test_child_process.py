"""Children that are started without a fork: their output, their end, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
from typing import Any

import pytest
import uvloop

from skerry.kit import child_process
from skerry.kit.child_process import PIPE, STDOUT

SHELL = ("/bin/sh", "-c")


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_both_outputs_and_the_exit_status_are_those_of_the_program(factory: object) -> None:
    async def run() -> tuple[bytes, bytes, int | None]:
        process = await child_process.start(
            (*SHELL, "echo $WORD; pwd >&2; exit 3"), stdout=PIPE, stderr=PIPE, env={"WORD": "hello"}, cwd="/"
        )
        output, errors = await process.communicate()
        return output, errors, process.returncode

    with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
        assert runner.run(run()) == (b"hello\n", b"/\n", 3)


def test_a_pipe_is_closed_once_and_so_never_a_descriptor_of_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[bool] = []  # whether the descriptor was still open

    class Pipe(io.FileIO):
        def close(self) -> None:
            if not self.closed:
                closed.append(os.path.exists(f"/proc/self/fd/{self.fileno()}"))
            super().close()

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            assert self.stdout is not None
            read_end = os.dup(self.stdout.fileno())
            self.stdout.close()
            self.stdout = Pipe(read_end)

    async def run() -> bytes:
        process = await child_process.start((*SHELL, "echo hello"), stdout=PIPE)
        return (await process.communicate())[0]

    monkeypatch.setattr(subprocess, "Popen", Popen)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) == b"hello\n"
    assert closed == [True]


async def test_what_nobody_reads_stays_in_the_pipe() -> None:
    process = await child_process.start((*SHELL, "head -c 10000000 /dev/zero"), stdout=PIPE)
    assert process.stdout is not None
    await process.stdout.readexactly(1)
    assert process.returncode is None
    assert len(await process.stdout.read()) == 10_000_000 - 1
    assert await process.wait() == 0


async def test_more_output_than_a_pipe_holds_is_read_to_its_end() -> None:
    process = await child_process.start(
        (*SHELL, "head -c 300000 /dev/zero; echo x >&2"), stdout=PIPE, stderr=STDOUT
    )
    output, errors = await process.communicate()
    assert output == bytes(300_000) + b"x\n"
    assert errors == b""


async def test_a_child_that_is_killed_ends_with_the_signal_and_is_reaped() -> None:
    process = await child_process.start((*SHELL, "exec sleep 100"))
    assert process.returncode is None
    process.kill()
    assert await process.wait() == -signal.SIGKILL
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)  # noqa: ASYNC222 - it does not wait
    with pytest.raises(ProcessLookupError):
        process.kill()


async def test_several_may_wait_for_one_child() -> None:
    process = await child_process.start((*SHELL, "exit 4"))
    assert await asyncio.gather(process.wait(), process.wait()) == [4, 4]
    assert await process.wait() == 4


async def test_a_program_that_is_not_there_is_an_error_and_no_child() -> None:
    with pytest.raises(FileNotFoundError):
        await child_process.start(("/no/such/program",), stdout=PIPE)


async def test_a_child_has_only_the_descriptors_that_it_is_given() -> None:
    reading, writing = os.pipe()
    try:
        program = f"echo given > /proc/self/fd/{writing}; echo other > /proc/self/fd/{reading}"
        process = await child_process.start((*SHELL, program), stderr=PIPE, pass_fds=(writing,))
        _, errors = await process.communicate()
        os.set_blocking(reading, False)
        assert os.read(reading, 100) == b"given\n"
        assert b"fd/%d" % reading in errors
    finally:
        os.close(reading)
        os.close(writing)
