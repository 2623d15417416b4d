"""The processes of the host, as far as `Cells` touches them itself: signals, start times, inits of earlier
agents.

A pid alone names nothing, since it is used again. Here it comes with a start time or a group to go with it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from skerry.node.launcher.client import InitClient, start_time_of

ListProcesses = Callable[[], list[int]]

_AT_ONCE = 64  # descriptors that asking a crowd may hold at once


class HostProcesses:
    """Those of this host."""

    def ask(self, listing: ListProcesses) -> set[int]:
        """SIGTERM for every process that `listing` names, and for no other; whom it went to."""
        asked: set[int] = set()
        self._ask_all(listing(), listing, asked)
        return asked

    def ask_strays(self, listing: ListProcesses, asked: set[int]) -> None:
        """SIGTERM also for those that were just being forked when their parent was asked, and died of it.

        The kernel lists a child a moment after it can no longer be prevented. What a parent that lives on has
        forked since is its own affair: perhaps it tidies up.
        """
        pids = listing()
        new = [pid for pid in pids if pid not in asked]
        self._ask_all([pid for pid in new if _parent(pid) not in pids], listing, asked)

    def _ask_all(self, pids: Sequence[int], listing: ListProcesses, asked: set[int]) -> None:
        remaining = iter(pids)
        while crowd := list(islice(remaining, _AT_ONCE)):
            _send(crowd, signal.SIGTERM, listing)
            asked.update(crowd)

    def signal(self, pid: int, number: int, listing: ListProcesses) -> bool:
        """Send a signal to a process that `listing` names; False if it is gone."""
        return _send([pid], number, listing) == 1

    def start_time(self, pid: int) -> int | None:
        """In ticks since the boot; with the pid, a name that is not used again."""
        try:
            return start_time_of(pid)
        except OSError:
            return None

    def adopt(self, pid: int, start_time: int, control_fd: int) -> InitClient | None:
        """The init that an earlier agent made, or None if it cannot be had."""
        return InitClient.adopt(pid, start_time, control_fd)


def _send(crowd: Sequence[int], number: int, listing: ListProcesses) -> int:
    """Send a signal to each that is there; how many that were.

    A pid may have been used again since it was listed. One that is still listed after its descriptor was
    opened is the right process, or another that is in the group as well.
    """
    opened: dict[int, int] = {}
    reached = 0
    try:
        for pid in crowd:
            try:
                opened[pid] = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
        still = set(listing())
        for pid, descriptor in opened.items():
            if pid in still:
                try:
                    signal.pidfd_send_signal(descriptor, number)
                    reached += 1
                except ProcessLookupError:
                    continue
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
    return reached


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0  # gone
