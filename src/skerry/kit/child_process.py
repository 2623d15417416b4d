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
from typing import IO, Any, Final

DEVNULL: Final = subprocess.DEVNULL
PIPE: Final = subprocess.PIPE
STDOUT: Final = subprocess.STDOUT
_READ_BYTES: Final = 65_536


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
        self.stdout = _reader(self._process.stdout)
        self.stderr = _reader(self._process.stderr)

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


def _reader(pipe: IO[bytes] | None) -> asyncio.StreamReader | None:
    if pipe is None:
        return None
    reader = asyncio.StreamReader()
    _PipeReader(pipe, reader)
    return reader


class _PipeReader(asyncio.ReadTransport):
    """Reads a pipe into a stream, and closes it at its end.

    The loop's own `connect_read_pipe` is not for this: uvloop closes the descriptor, and then the file that
    it belongs to. If another thread has opened a descriptor of that number in between, that one is closed.
    """

    def __init__(self, pipe: IO[bytes], reader: asyncio.StreamReader) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._reader = reader
        os.set_blocking(pipe.fileno(), False)
        reader.set_transport(self)  # which pauses while nobody reads what there is
        self.resume_reading()

    def pause_reading(self) -> None:
        self._loop.remove_reader(self._pipe.fileno())

    def resume_reading(self) -> None:
        if not self._pipe.closed:
            self._loop.add_reader(self._pipe.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._reader.feed_data(data)
            return
        self.pause_reading()
        self._pipe.close()
        self._reader.feed_eof()


async def _read(reader: asyncio.StreamReader | None) -> bytes:
    return b"" if reader is None else await reader.read()
