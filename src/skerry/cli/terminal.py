"""Our own terminal: its size and its raw mode."""

from __future__ import annotations

import os
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raw(descriptor: int) -> Iterator[None]:
    """Raw mode: keys are passed on unchanged and without echo; the mode is restored afterwards."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSANOW)
        yield
    finally:
        # Without waiting for pending output, which might take for ever.
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def size(descriptor: int) -> tuple[int, int]:
    """Rows and columns; 0 and 0 if it is not a terminal."""
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        return 0, 0
    return rows, columns
