"""One unpacker process, as the agent runs it: start, feed, watch, end.

`skerry.node.layers.unpacker_client` decides what is unpacked and where; `skerry.node.layers.unpacker.main` is
the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import importlib.util
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

import skerry
from skerry.kit import child_process, fd_readiness, json_codec
from skerry.kit.child_process import ChildProcess
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors

_PIPE_BYTES: Final = 1 << 20  # the default limit for unprivileged processes
_COMPLAINT_BYTES: Final = 8192
# Without site-packages, the environment and the user's folders: quick to start, and nothing foreign in it.
_INTERPRETER: Final = (sys.executable, "-I", "-S", "-X", "utf8", "-c")
_PROGRAM: Final = (
    "import sys; root, agent, diff_id, most_bytes, most_files, users, groups, *paths = sys.argv[1:]; "
    "sys.path += paths; "
    "from skerry.node.layers.unpacker.main import main; "
    "main(int(root), int(agent), diff_id, int(most_bytes), int(most_files), int(users), int(groups))"
)


class UnpackerMessage(msgspec.Struct):
    """A line of the child's output."""

    bytes: int = 0
    files: int = 0
    changed_owners: int = 0
    devices: int = 0
    diff_id: str = ""  # present: the layer is complete
    fault: str = ""  # present: it failed
    message: str = ""


class LayerInput:
    """The layer as the child's stdin: an open file, or the reading end of a pipe that is fed here."""

    def __init__(self, source: Path | AsyncIterator[bytes]) -> None:
        self._source = source
        self._writing = -1
        if isinstance(source, Path):
            self.reading = open_existing(source, os.O_RDONLY | os.O_CLOEXEC)
            return
        self.reading, self._writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._writing, False)
        with contextlib.suppress(OSError):  # over the limit of pipe memory; a small one works too
            fcntl.fcntl(self._writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def __enter__(self) -> LayerInput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_reading()
        self._close_writing()

    def close_reading(self) -> None:
        """The child has it: close our copy, so that writes fail when the child is gone."""
        if self.reading >= 0:
            os.close(self.reading)
            self.reading = -1

    async def feed(self, watch: ProgressWatchdog) -> None:
        """Write all input to the child. It may end before it has read everything, and reports why."""
        if isinstance(self._source, Path):
            return
        try:
            watch.pause()
            async for chunk in self._source:
                watch.resume()
                await self._write(chunk)
                watch.pause()
        except BrokenPipeError:
            pass
        finally:
            watch.resume()
            self._close_writing()
            close = getattr(self._source, "aclose", None)
            if close is not None:  # a generator, which is not read further
                await close()

    async def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            try:
                view = view[os.write(self._writing, view) :]
            except BlockingIOError:
                await fd_readiness.wait_writable(self._writing)

    def _close_writing(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1


class ProgressWatchdog:
    """The deadline for progress reports of the child. It does not run while the child has no input."""

    def __init__(self, deadline: asyncio.Timeout, idle_s: float) -> None:
        self._deadline = deadline
        self._idle_s = idle_s
        self._is_paused = False

    def pause(self) -> None:
        self._is_paused = True
        self._set(None)

    def resume(self) -> None:
        self._is_paused = False
        self.restart()

    def restart(self) -> None:
        """The child reported progress."""
        if not self._is_paused:
            self._set(asyncio.get_running_loop().time() + self._idle_s)

    def _set(self, when: float | None) -> None:
        with contextlib.suppress(RuntimeError):  # it has expired already
            self._deadline.reschedule(when)


class UnpackerProcess:
    """The process, from its start to its end."""

    def __init__(self, process: ChildProcess, idle_s: float) -> None:
        self._process = process
        # Not `process.kill`, which may reap the process behind the back of the event loop.
        try:
            self._pidfd: int | None = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._pidfd = None  # it has died and been reaped
        self._idle_s = idle_s
        self._complaint = bytearray()

    @classmethod
    async def start(
        cls,
        layer_input: LayerInput,
        root: int,
        diff_id: str,
        most_bytes: int,
        most_files: int,
        idle_s: float,
        ids: tuple[int, int],
    ) -> UnpackerProcess:
        """Start it on the folder that is open as `root`. Raises Unavailable."""
        arguments = (root, os.getpid(), diff_id, most_bytes, most_files, *ids, *import_paths())
        try:
            process = await child_process.start(
                (*_INTERPRETER, _PROGRAM, *map(str, arguments)),
                stdin=layer_input.reading,
                stdout=child_process.PIPE,
                stderr=child_process.PIPE,
                pass_fds=(root,),
                start_new_session=True,  # signals of the terminal are for the agent
                cwd="/",
                env={},
            )
        except OSError as error:
            raise errors.Unavailable(
                "no process can be started to unpack a layer: free some memory or processes, and try again",
                detail=str(error),
            ) from error
        layer_input.close_reading()
        return cls(process, idle_s)

    @property
    def stderr_tail(self) -> str:
        """The end of its stderr."""
        return self._complaint.decode(errors="replace").strip()

    @property
    def status(self) -> int | None:
        """Its exit code; negative for a signal."""
        return self._process.returncode

    async def exchange(self, layer_input: LayerInput) -> UnpackerMessage | None:
        """Feed it and return its reply; None if there was none, or an invalid one.

        Raises TimedOut, and the errors of the source of `layer_input`.
        """
        deadline = asyncio.timeout(self._idle_s)
        try:
            async with deadline:
                watch = ProgressWatchdog(deadline, self._idle_s)
                tasks = (
                    asyncio.create_task(layer_input.feed(watch)),
                    asyncio.create_task(self._read_reply(watch)),
                    asyncio.create_task(self._read_stderr()),
                )
                feeding, reading, complaining = tasks
                try:
                    await asyncio.wait((feeding, reading), return_when=asyncio.FIRST_COMPLETED)
                    if feeding.done():
                        feeding.result()
                    reply = await reading
                    await complaining
                    return reply
                finally:
                    await cancel_and_wait(tasks)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise errors.TimedOut(
                f"unpacking a layer made no progress for {self._idle_s:g} s; check the disk"
            ) from error

    async def end(self) -> None:
        """Kill it, if it is running, and reap it."""
        self._kill()
        if self._pidfd is not None:
            os.close(self._pidfd)
        # Its exit is reported only when its output has been read.
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            while await stream.read(_COMPLAINT_BYTES):
                pass
        await self._process.wait()

    def _kill(self) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def _read_reply(self, watch: ProgressWatchdog) -> UnpackerMessage | None:
        assert self._process.stdout is not None
        reply = None
        try:
            while line := await self._process.stdout.readline():
                watch.restart()
                reply = json_codec.decode(line, UnpackerMessage)
        except ValueError:  # not JSON, or a line that is too long
            self._kill()
            return None
        return reply if reply is not None and (reply.diff_id or reply.fault) else None

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while part := await self._process.stderr.read(_COMPLAINT_BYTES):
            self._complaint += part
            del self._complaint[:-_COMPLAINT_BYTES]


def open_existing(path: Path, flags: int) -> int:
    """Open a file or folder that the caller has just created. Raises Internal."""
    try:
        return os.open(path, flags)
    except OSError as error:
        raise errors.Internal(
            f"{path.name} cannot be opened: {(error.strerror or 'no reason').lower()}; "
            "do not change the data folder, and pull the image again",
            detail=str(error),
        ) from error


@functools.cache
def import_paths() -> tuple[str, ...]:
    """Import paths of the child for Skerry and the decompressors, which this process does not import."""
    paths = [str(Path(skerry.__file__).parent.parent)]
    for name in ("isal", "zstandard"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise errors.Unavailable(f"the Python package {name} is missing; install Skerry again")
        paths.append(str(Path(spec.origin).parent.parent))
    return tuple(dict.fromkeys(paths))
