"""Kills every process of a group by signals, where the kernel cannot do it in one write."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Collection, Iterable

_ROUNDS = 1000
_AT_ONCE = 128  # pidfds, of which a process may have little more than a thousand


def kill_all(pids: Callable[[], Iterable[int]]) -> None:
    """Send SIGKILL to what `pids` lists, repeatedly until it lists nothing new.

    A process with a pending kill cannot fork: when a list contains only processes that were signalled, no
    more can appear. Each process is signalled through a pidfd, and only if it is still listed after that was
    opened, so that a reused pid is never hit.
    """
    signalled: set[int] = set()
    for _ in range(_ROUNDS):
        fresh = sorted(set(pids()) - signalled)
        if not fresh:
            return
        for start in range(0, len(fresh), _AT_ONCE):
            _kill_some(fresh[start : start + _AT_ONCE], pids)
        signalled.update(fresh)


def _kill_some(chosen: Collection[int], pids: Callable[[], Iterable[int]]) -> None:
    with contextlib.ExitStack() as opened:
        pidfds: dict[int, int] = {}
        for pid in chosen:
            try:
                pidfds[pid] = os.pidfd_open(pid)
            except OSError as error:
                # It ended, or is a thread other than the first one of its process, which is listed too.
                if error.errno not in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
                    raise
            else:
                opened.callback(os.close, pidfds[pid])
        for pid in pidfds.keys() & set(pids()):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfds[pid], signal.SIGKILL)
