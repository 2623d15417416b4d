"""Killing every process of a group by signals, where the kernel cannot do it in one write."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Collection, Iterable

_ROUNDS = 1000
_AT_ONCE = 128  # descriptors, of which a process may not have many more than a thousand


def kill_all(pids: Callable[[], Iterable[int]]) -> None:
    """SIGKILL for what `pids` lists, again until it lists nobody new.

    A process with a kill pending cannot fork: when a list holds none but those already signalled, no more can
    come. Each process is held by a pidfd and signalled only if it is still listed after that was opened, so
    that a number that was given to a stranger meanwhile is never hit.
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
        held: dict[int, int] = {}
        for pid in chosen:
            try:
                held[pid] = os.pidfd_open(pid)
            except OSError as error:
                # Ended by itself, or a thread beside the first one of its process, which is listed too.
                if error.errno not in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
                    raise
            else:
                opened.callback(os.close, held[pid])
        for pid in held.keys() & set(pids()):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(held[pid], signal.SIGKILL)
