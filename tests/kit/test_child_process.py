"""Children that are started without a fork: their output, their end, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import io
import os
import signal

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


class CheckedPipe(io.FileIO):
    """Notes whether its descriptor was still its own when it was closed."""

    owned: bool | None = None

    def close(self) -> None:
        if not self.closed:
            try:
                os.fstat(self.fileno())
                self.owned = True
            except OSError:
                self.owned = False
        super().close()


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_pipe_is_closed_once_at_its_end(factory: object) -> None:
    reading, writing = os.pipe()
    pipe = CheckedPipe(reading)

    async def run() -> bytes:
        stream = child_process.read_pipe(pipe)
        os.write(writing, b"hello")
        os.close(writing)
        return await stream.read()

    with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
        assert runner.run(run()) == b"hello"
    assert (pipe.closed, pipe.owned) == (True, True)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_program_waits_while_nobody_reads_its_output(factory: object) -> None:
    async def run() -> tuple[int, int]:
        process = await child_process.start((*SHELL, "head -c 3000000 /dev/zero"), stdout=PIPE)
        assert process.stdout is not None
        first = await process.stdout.readexactly(1)
        rest = 0
        while data := await process.stdout.read(1000):
            rest += len(data)
        return len(first) + rest, await process.wait()

    with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
        assert runner.run(run()) == (3_000_000, 0)


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
