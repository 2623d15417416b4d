"""The standard streams of a program that a client runs in a container: pipes, or a terminal.

Made before the program is started, which gets the other ends. Our ends never block, and nothing is kept
here: who reads slowly or writes fast waits.
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
_END_OF_INPUT: Final = b"\x04"  # as a terminal says it


class StdioStreams:
    """`with StdioStreams.pipes(...) as streams:` closes whatever is still open of both sides."""

    def __init__(
        self,
        theirs: tuple[int, int, int],
        input_: int | None,
        outputs: Mapping[OutputChannel, int],
        *,
        has_terminal: bool,
    ) -> None:
        self.theirs = theirs
        self.outputs = outputs
        self._input = input_
        self._has_terminal = has_terminal
        self._our_descriptors = {*outputs.values(), *(() if input_ is None else (input_,))}
        self._their_descriptors = set(theirs)
        for descriptor in self._our_descriptors:
            os.set_blocking(descriptor, False)

    @classmethod
    def pipes(cls, *, takes_input: bool) -> StdioStreams:
        """A pipe each for output and errors, and one for input or none."""
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
        """A terminal for all three. It passes everything on as it is: the container's own one interprets."""
        ours, theirs = pty.openpty()
        tty.setraw(theirs)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        return cls((theirs, theirs, theirs), ours, {OutputChannel.STDOUT: ours}, has_terminal=True)

    def __enter__(self) -> StdioStreams:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hand_over()
        while self._our_descriptors:
            os.close(self._our_descriptors.pop())

    def hand_over(self) -> None:
        """The program has its ends now; ours of them are closed, so that their end is heard."""
        while self._their_descriptors:
            os.close(self._their_descriptors.pop())

    async def write(self, data: bytes) -> None:
        """All of `data` to the program as it takes it; what nobody will read is dropped."""
        left = memoryview(data)
        while left and self._input is not None:
            try:
                left = left[os.write(self._input, left) :]
            except BlockingIOError:
                await wait_writable(self._input)
            except OSError:
                self._close_input()  # the program has closed its input, or ended

    async def end_input(self) -> None:
        """There will be no more."""
        if self._has_terminal:
            await self.write(_END_OF_INPUT)
        self._close_input()

    def take(self, stream: OutputChannel) -> bytes | None:
        """Some of what was written to `stream`: None if there is nothing now, empty at its end."""
        try:
            return os.read(self.outputs[stream], _CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""  # how a terminal says that nobody has the other end

    async def readable(self, stream: OutputChannel) -> None:
        """Return when `take` has something."""
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
