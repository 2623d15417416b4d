"""Child processes for an event loop, started without a copy of this process.

The loop's own `create_subprocess_exec` forks: uvloop copies the page tables of the whole process meanwhile,
which takes a large server 10 to 100 ms in which nothing else runs. `subprocess.Popen` starts with vfork, in
less than a millisecond. What is here has the methods of `asyncio.subprocess.Process` that are used.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, cast

DEVNULL: Final = subprocess.DEVNULL
PIPE: Final = subprocess.PIPE
STDOUT: Final = subprocess.STDOUT
_AT_ONCE: Final = 65536


class ChildProcess:
    """A running child; made by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], pidfd: int) -> None:
        self._process = process
        self._pidfd = pidfd
        self._ended = asyncio.Event()
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.returncode if self._ended.is_set() else None

    async def wait(self) -> int:
        await self._ended.wait()
        status = self._process.returncode
        assert status is not None
        return status

    async def communicate(self) -> tuple[bytes, bytes]:
        """All of its output and of its errors, as far as there are pipes, once it has ended."""
        output, errors, _ = await asyncio.gather(_read(self.stdout), _read(self.stderr), self.wait())
        return output, errors

    def kill(self) -> None:
        """Raises ProcessLookupError if it has ended."""
        if self._ended.is_set():
            raise ProcessLookupError
        os.kill(self._process.pid, 9)  # it is not reaped yet, so this is no other process

    def open_pipes(self) -> None:
        """Read what it writes, and learn when it ends."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._pidfd, self._reap)
        self.stdout = None if self._process.stdout is None else read_pipe(self._process.stdout)
        self.stderr = None if self._process.stderr is None else read_pipe(self._process.stderr)

    def _reap(self) -> None:
        if self._process.poll() is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set()


async def start(
    arguments: Sequence[str],
    *,
    stdin: int | IO[bytes] = DEVNULL,
    stdout: int = DEVNULL,
    stderr: int | None = DEVNULL,
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> ChildProcess:
    """Start a program. Raises OSError.

    `more` is for `subprocess.Popen`, without `preexec_fn`, which would need a fork.
    """
    process = subprocess.Popen(  # noqa: ASYNC220 - it takes less than a thread
        arguments, stdin=stdin, stdout=stdout, stderr=stderr, env=env, bufsize=0, **more
    )
    child = ChildProcess(process, os.pidfd_open(process.pid))
    child.open_pipes()
    return child


def read_pipe(pipe: IO[bytes]) -> asyncio.StreamReader:
    """What comes from a pipe, which is closed at its end."""
    return _PipeInput(pipe).reader


class _PipeInput:
    """Feeds a stream from a pipe; to the stream it is its transport.

    The loop's `connect_read_pipe` is not used, because with uvloop it closes the descriptor twice. The second
    time it may be another's: that of a database, or of the loop itself.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self.reader = asyncio.StreamReader()
        self.reader.set_transport(cast(asyncio.Transport, self))
        os.set_blocking(pipe.fileno(), False)
        self.resume_reading()

    def pause_reading(self) -> None:
        self._loop.remove_reader(self._pipe.fileno())

    def resume_reading(self) -> None:
        if not self._pipe.closed:
            self._loop.add_reader(self._pipe.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), _AT_ONCE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.pause_reading()
            self._pipe.close()
            self.reader.set_exception(error)
            return
        if data:
            self.reader.feed_data(data)
        else:
            self.pause_reading()
            self._pipe.close()
            self.reader.feed_eof()


async def _read(reader: asyncio.StreamReader | None) -> bytes:
    return b"" if reader is None else await reader.read()
