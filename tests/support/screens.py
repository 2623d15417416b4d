"""A terminal for a command, with a test at the keyboard."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios

from tests.support.nodes import Command, Running


class Screen:
    """A terminal that a command is given."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self._attributes = termios.tcgetattr(self.theirs)
        self.resize(30, 90)
        self.seen = b""

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._ours)
        os.close(self.theirs)

    @property
    def is_as_before(self) -> bool:
        return termios.tcgetattr(self.theirs) == self._attributes

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def read_until(self, text: bytes) -> None:
        while text not in self.seen:
            self.seen += os.read(self._ours, 4096)

    def command(self, running: Running, *arguments: str) -> Command:
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), self.theirs)
        return Command(running, *arguments, start_new_session=True, **streams)
