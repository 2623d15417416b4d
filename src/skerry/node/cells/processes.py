"""The processes of the host, as far as `Cells` touches them itself: signals, start times, inits of earlier
agents.

A pid alone names nothing, since it is used again. Here it comes with a start time or a group to go with it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from itertools import islice

from skerry.node.cells.stopping import Listing
from skerry.node.launching import InitHandle, start_time_of

_AT_ONCE = 64  # descriptors that asking a crowd may hold at once
_ROUNDS = 8  # a program that answers the asking by forking is not chased for ever


class Processes:
    """Those of this host."""

    def ask(self, listing: Listing) -> None:
        """SIGTERM for every process that `listing` names, and for no other.

        A shell may fork as it is asked. The kernel lets no process fork that has a signal to take first, so
        what is new in a list made after the asking is all that there can be; it is asked as well.
        """
        asked: set[int] = set()
        for _ in range(_ROUNDS):
            fresh = iter([pid for pid in listing() if pid not in asked])
            while crowd := list(islice(fresh, _AT_ONCE)):
                asked.update(crowd)
                _ask(crowd, listing)
            if asked.issuperset(listing()):
                return

    def start_time(self, pid: int) -> int | None:
        """In ticks since the boot; with the pid, a name that is not used again."""
        try:
            return start_time_of(pid)
        except OSError:
            return None

    def adopt(self, pid: int, start_time: int, control_fd: int) -> InitHandle | None:
        """The init that an earlier agent made, or None if it cannot be had."""
        return InitHandle.adopt(pid, start_time, control_fd)


def _ask(crowd: Sequence[int], listing: Listing) -> None:
    """A pid may have been used again since it was listed. One that is still listed after its descriptor was
    opened is the right process, or another that is in the group as well."""
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
