"""A terminal for a command, with a test at the keyboard."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time

import pyte

from tests.support.nodes import Command, Running
from tests.support.waiting import PATIENCE_S


class Screen:
    """A terminal that a command is given."""

    def __init__(self, rows: int = 30, columns: int = 90) -> None:
        self._ours, self.theirs = pty.openpty()
        self._attributes = termios.tcgetattr(self.theirs)
        self._drawn = pyte.Screen(columns, rows)
        self._drawing = pyte.ByteStream(self._drawn)
        self.resize(rows, columns)
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
        self._drawn.resize(rows, columns)

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def read_until(self, text: bytes) -> None:
        while text not in self.seen:
            self.seen += os.read(self._ours, 4096)

    @property
    def display(self) -> str:
        """What a person sees now."""
        return "\n".join(line.rstrip() for line in self._drawn.display)

    def wait_for(self, *texts: str) -> str:
        """What a person sees, once all of `texts` are on the screen."""
        deadline = time.monotonic() + PATIENCE_S
        while not all(text in self.display for text in texts):
            readable, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"{texts} did not appear:\n{self.display}"
            data = os.read(self._ours, 4096)
            self.seen += data
            self._drawing.feed(data)
        return self.display

    def command(self, running: Running, *arguments: str) -> Command:
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), self.theirs)
        return Command(running, *arguments, start_new_session=True, **streams)
