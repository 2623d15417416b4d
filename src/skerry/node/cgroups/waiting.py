"""Waiting for a group to become empty, on whichever event loop runs.

The kernel tells of a change of `cgroup.events` by urgent data on a descriptor of it. Event loops only know
readable and writable, and such a file is always readable; so it goes into an epoll of its own, which is
readable exactly when something changed. The kernel holds back notices that follow one another within 10 ms,
and v1 gives none at all: the condition is looked at again after pauses that double, too.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05  # without notices
_LONGEST_PAUSE_WATCHED_S = 1.0


async def until(condition: Callable[[], bool], watched: int | None, *, within_s: float) -> bool:
    """True once `condition` is; False if it is not after `within_s`. Closes `watched`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    pause = _FIRST_PAUSE_S
    bell = asyncio.Event()
    epoll: select.epoll | None = None
    try:
        if watched is not None:
            epoll = select.epoll()
            epoll.register(watched, select.EPOLLPRI)
            loop.add_reader(epoll.fileno(), _ring, bell, watched)
        while not condition():
            left = deadline - loop.time()
            if left <= 0:
                return False
            try:
                async with asyncio.timeout(min(pause, left)):
                    await bell.wait()
            except TimeoutError:
                pause = min(pause * 2, _LONGEST_PAUSE_S if watched is None else _LONGEST_PAUSE_WATCHED_S)
            bell.clear()
        return True
    finally:
        if epoll is not None:
            loop.remove_reader(epoll.fileno())
            epoll.close()
        if watched is not None:
            os.close(watched)


def _ring(bell: asyncio.Event, watched: int) -> None:
    try:
        os.pread(watched, 256, 0)  # reading through this descriptor arms it for the next change
    except OSError:
        pass  # the group is gone, which the condition will see
    bell.set()
