"""Waits for a group to become empty, on any event loop.

The kernel notifies of changes of `cgroup.events` by urgent data on its descriptor. Event loops know only
readable and writable, and such a file is always readable; so it is added to an epoll of its own, which is
readable exactly when something changed. The kernel delays notifications that follow one another within 10 ms,
and v1 has none: so the condition is polled as well, with pauses that double.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05  # between polls
_LONGEST_PAUSE_WATCHED_S = 1.0


async def until(condition: Callable[[], bool], watched: int | None, *, within_s: float) -> bool:
    """True once `condition` holds; False if it does not within `within_s`. Closes `watched`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    pause = _FIRST_PAUSE_S
    changed = asyncio.Event()
    epoll: select.epoll | None = None
    try:
        if watched is not None:
            epoll = select.epoll()
            epoll.register(watched, select.EPOLLPRI)
            loop.add_reader(epoll.fileno(), _notify, changed, watched)
        while not condition():
            remaining_s = deadline - loop.time()
            if remaining_s <= 0:
                return False
            try:
                async with asyncio.timeout(min(pause, remaining_s)):
                    await changed.wait()
            except TimeoutError:
                pause = min(pause * 2, _LONGEST_PAUSE_S if watched is None else _LONGEST_PAUSE_WATCHED_S)
            changed.clear()
        return True
    finally:
        if epoll is not None:
            loop.remove_reader(epoll.fileno())
            epoll.close()
        if watched is not None:
            os.close(watched)


def _notify(changed: asyncio.Event, watched: int) -> None:
    try:
        os.pread(watched, 256, 0)  # reading arms the descriptor for the next change
    except OSError:
        pass  # the group is gone, which the condition detects
    changed.set()
