"""Waiting for changes in a folder without polling: inotify, by ctypes, on the running event loop.

The kernel is only read while a task waits. In between it merges events into its own bounded queue,
so that a folder that is written to all the time costs its watcher nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from pathlib import Path

MODIFY = 0x2
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryWatch:
    """Watches `folder`; opened at once, so that no later change is missed.

    Raises `OSError` if the kernel gives no more watches: it allows each user a number of them.
    """

    def __init__(self, folder: Path | str, mask: int = MODIFY) -> None:
        self._descriptor: int = _libc.inotify_init1(_NONBLOCK_CLOEXEC)
        if self._descriptor < 0:
            raise _last_error(folder)
        if _libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask) < 0:
            error = _last_error(folder)
            self.close()
            raise error

    async def changed(self, within_s: float) -> bool:
        """Wait for a change since the last time this returned True; False if there was none `within_s`."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._descriptor, readable.set)
        try:
            async with asyncio.timeout(within_s):
                await readable.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._descriptor)
        os.read(self._descriptor, 65536)  # what does not fit makes the next call return at once
        return True

    def close(self) -> None:
        os.close(self._descriptor)


def _last_error(folder: Path | str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(folder))
