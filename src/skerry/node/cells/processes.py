"""The processes of the host, as far as `Cells` touches them itself: signals, start times, inits of earlier
agents.

A pid alone names nothing, since it is used again. Here it comes with a start time or a group to go with it.
"""

from __future__ import annotations

import os
import signal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from skerry.node.cells.stopping import Listing

if TYPE_CHECKING:
    from skerry.node.launching import InitHandle

_AT_ONCE = 64  # descriptors that asking a crowd may hold at once
_START_TIME = 22 - 3  # its place in /proc/PID/stat, counted from the field after the name


class Processes:
    """Those of this host."""

    def ask(self, listing: Listing) -> None:
        """SIGTERM for every process that `listing` names, and for no other.

        A pid may have been used again since it was listed; one that is still listed after its descriptor
        was opened is the right process, or another that is in the group as well.
        """
        pids = iter(listing())
        while crowd := list(islice(pids, _AT_ONCE)):
            opened: dict[int, int] = {}
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
                            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
                        except ProcessLookupError:
                            continue
            finally:
                for descriptor in opened.values():
                    os.close(descriptor)

    def start_time(self, pid: int) -> int | None:
        """In ticks since the boot; with the pid, a name that is not used again."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The name is in brackets, and may hold any character, brackets and spaces too.
        return int(stat[stat.rindex(b")") + 2 :].split()[_START_TIME])

    def adopt(self, pid: int, start_time: int, control_fd: int) -> InitHandle | None:
        """The init that an earlier agent made, or None if it cannot be had."""
        from skerry.node.launching import InitHandle

        return InitHandle.adopt(pid, start_time, control_fd)
