"""Processes of the host for `Cells`: signals, start times, adoption of inits of earlier agents.

A pid alone identifies nothing, since it is reused: it is checked with a start time or a group.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from skerry.node.kernel.processes import start_time_of
from skerry.node.launcher.client import InitClient

ListProcesses = Callable[[], list[int]]

_AT_ONCE = 64  # pidfds to hold at once


class HostProcesses:
    """The processes of this host."""

    def sigterm(self, list_pids: ListProcesses) -> set[int]:
        """Send SIGTERM to every process that `list_pids` returns, and to no other; returns those that were
        signalled."""
        signalled: set[int] = set()
        self._sigterm_all(list_pids(), list_pids, signalled)
        return signalled

    def sigterm_orphans(self, list_pids: ListProcesses, signalled: set[int]) -> None:
        """Send SIGTERM also to those that were being forked when their parent got it, and died of it.

        The kernel lists a child a moment after the fork can no longer fail. Children that a living parent has
        forked since are left to it: it may be cleaning up.
        """
        pids = list_pids()
        new = [pid for pid in pids if pid not in signalled]
        self._sigterm_all([pid for pid in new if _parent(pid) not in pids], list_pids, signalled)

    def _sigterm_all(self, pids: Sequence[int], list_pids: ListProcesses, signalled: set[int]) -> None:
        remaining = iter(pids)
        while batch := list(islice(remaining, _AT_ONCE)):
            _send(batch, signal.SIGTERM, list_pids)
            signalled.update(batch)

    def signal(self, pid: int, number: int, list_pids: ListProcesses) -> bool:
        """Send a signal to a process that `list_pids` returns; False if it is gone."""
        return _send([pid], number, list_pids) == 1

    def start_time(self, pid: int) -> int | None:
        """In ticks since boot; with the pid it identifies a process uniquely."""
        try:
            return start_time_of(pid)
        except OSError:
            return None

    def adopt(self, pid: int, start_time: int, control_fd: int) -> InitClient | None:
        """The init that an earlier agent created; None if it cannot be adopted."""
        return InitClient.adopt(pid, start_time, control_fd)


def _send(batch: Sequence[int], number: int, list_pids: ListProcesses) -> int:
    """Send a signal to each that exists; returns how many did.

    A pid may have been reused since it was listed. One that is still listed after its pidfd was opened is the
    right process, or another of the same group.
    """
    opened: dict[int, int] = {}
    sent = 0
    try:
        for pid in batch:
            try:
                opened[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
        still = set(list_pids())
        for pid, descriptor in opened.items():
            if pid in still:
                try:
                    signal.pidfd_send_signal(descriptor, number)
                    sent += 1
                except ProcessLookupError:
                    continue
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
    return sent


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0  # gone
