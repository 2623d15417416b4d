"""Standard streams of a program that a client runs in a container: pipes, or a terminal.

Created before the program is started, which gets the other ends. Our ends are non-blocking, and nothing is
buffered here: a slow reader or a fast writer waits.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import struct
import termios
import tty
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Final

from skerry.kit.fd_readiness import wait_readable, wait_writable
from skerry.model.cells import OutputChannel

_CHUNK: Final = 32 * 1024
_END_OF_INPUT: Final = b"\x04"  # EOT, the end of input on a terminal


class StdioStreams:
    """`with StdioStreams.pipes(...) as streams:` closes whatever is still open of both sides."""

    def __init__(
        self,
        program_fds: tuple[int, int, int],
        input_: int | None,
        outputs: Mapping[OutputChannel, int],
        *,
        has_terminal: bool,
    ) -> None:
        self.program_fds = program_fds
        self.outputs = outputs
        self._input = input_
        self._has_terminal = has_terminal
        self._our_descriptors = {*outputs.values(), *(() if input_ is None else (input_,))}
        self._open_program_fds = set(program_fds)
        for descriptor in self._our_descriptors:
            os.set_blocking(descriptor, False)

    @classmethod
    def pipes(cls, *, takes_input: bool) -> StdioStreams:
        """A pipe each for stdout and stderr, and one for stdin or none."""
        with ExitStack() as undo:
            output, their_output = _pipe(undo)
            errors, their_errors = _pipe(undo)
            if takes_input:
                their_input, input_ = _pipe(undo)
            else:
                their_input, input_ = os.open(os.devnull, os.O_RDONLY), None
            undo.pop_all()
        outputs = {OutputChannel.STDOUT: output, OutputChannel.STDERR: errors}
        return cls((their_input, their_output, their_errors), input_, outputs, has_terminal=False)

    @classmethod
    def terminal(cls, rows: int, columns: int) -> StdioStreams:
        """A raw terminal for all three: the container's own terminal interprets control characters."""
        master, program_fds = pty.openpty()
        tty.setraw(program_fds)
        fcntl.ioctl(program_fds, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        return cls(
            (program_fds, program_fds, program_fds), master, {OutputChannel.STDOUT: master}, has_terminal=True
        )

    def __enter__(self) -> StdioStreams:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_program_fds()
        while self._our_descriptors:
            os.close(self._our_descriptors.pop())

    def close_program_fds(self) -> None:
        """The program has its ends now; close our copies, so that the end of output is detected."""
        while self._open_program_fds:
            os.close(self._open_program_fds.pop())

    async def write(self, data: bytes) -> None:
        """Write all of `data` to the program as it reads; dropped if it no longer does."""
        remaining = memoryview(data)
        while remaining and self._input is not None:
            try:
                remaining = remaining[os.write(self._input, remaining) :]
            except BlockingIOError:
                await wait_writable(self._input)
            except OSError:
                self._close_input()  # the program has closed its stdin, or ended

    async def end_input(self) -> None:
        """Signal the end of input."""
        if self._has_terminal:
            await self.write(_END_OF_INPUT)
        self._close_input()

    def read_available(self, stream: OutputChannel) -> bytes | None:
        """Available output of `stream`: None if there is none now, empty at its end."""
        try:
            return os.read(self.outputs[stream], _CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""  # a terminal whose other end is closed

    async def readable(self, stream: OutputChannel) -> None:
        """Return when `read_available` has something."""
        await wait_readable(self.outputs[stream])

    def _close_input(self) -> None:
        if self._input is not None and not self._has_terminal:
            self._our_descriptors.discard(self._input)
            os.close(self._input)
        self._input = None


def _pipe(undo: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        undo.callback(os.close, end)
    return ends
