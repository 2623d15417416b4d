"""Our own terminal: its size, and passing on every key as it is."""

from __future__ import annotations

import os
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raw(descriptor: int) -> Iterator[None]:
    """Keys are passed on one by one, unseen and without a meaning; afterwards all is as before."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor, termios.TCSANOW)
        yield
    finally:
        # At once: to wait until everything is written might be to wait for ever.
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def size(descriptor: int) -> tuple[int, int]:
    """Rows and columns; 0 and 0 if it is no terminal."""
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        return 0, 0
    return rows, columns
