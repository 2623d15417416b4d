"""A kernel whose signals and forks a test makes up, and whether the real one tells of signals."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count

import pytest

from skerry.model import errors
from skerry.node.signals import tracing
from skerry.node.signals.tracing import ForkRecord, LostRecords, SignalRecord, TraceRecord


def _is_traced() -> bool:
    try:
        os.close(tracing._open_event(tracing.read_format().number, cpu=0))
    except (errors.Unavailable, OSError):
        return False
    return True


needs_signals = pytest.mark.skipif(not _is_traced(), reason="this kernel tells nobody of signals")


class FakeKernel:
    """`open` is what `SignalSource` opens; `closed` counts how often it has closed it."""

    def __init__(self) -> None:
        self.heard: Callable[[list[TraceRecord]], None] | None = None
        self.opened = 0
        self.closed = 0
        self.lacks = ""  # why there are no signals to be had
        self._time = count(1)

    def open(self, heard: Callable[[list[TraceRecord]], None]) -> FakeKernel:
        if self.lacks:
            raise errors.Unavailable(self.lacks)
        assert self.heard is None
        self.heard = heard
        self.opened += 1
        return self

    def close(self) -> None:
        assert self.heard is not None
        self.heard = None
        self.closed += 1

    def signal(self, number: int, thread: int) -> None:
        self._tell(SignalRecord(next(self._time), number, thread))

    def fork(self, parent: int, pid: int, thread: int | None = None) -> None:
        self._tell(ForkRecord(next(self._time), pid if thread is None else thread, pid, parent))

    def lose(self, missing: int) -> None:
        self._tell(LostRecords(next(self._time), missing))

    def _tell(self, record: TraceRecord) -> None:
        assert self.heard is not None
        self.heard([record])
