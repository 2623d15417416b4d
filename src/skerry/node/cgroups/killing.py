"""Killing every process of a group by signals, where the kernel cannot do it in one write."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable

_ROUNDS = 1000


def kill_all(pids: Callable[[], Iterable[int]]) -> None:
    """SIGKILL for what `pids` lists, again until it lists nobody new.

    A process with a kill pending cannot fork: when a list holds none but those already signalled, no more can
    come. Each process is held by a pidfd and signalled only if it is still listed after that was opened, so
    that a number that was given to a stranger meanwhile is never hit.
    """
    signalled: set[int] = set()
    for _ in range(_ROUNDS):
        with contextlib.ExitStack() as opened:
            held: dict[int, int] = {}
            for pid in set(pids()) - signalled:
                try:
                    held[pid] = os.pidfd_open(pid)
                except ProcessLookupError:
                    continue  # ended by itself
                opened.callback(os.close, held[pid])
            if not held:
                return
            for pid in held.keys() & set(pids()):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(held[pid], signal.SIGKILL)
                signalled.add(pid)
