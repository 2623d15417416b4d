"""A cell is held to its limits by looking at it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from skerry.kit.clock import SystemClock
from skerry.model.cells import CellLimits
from skerry.model.ids import CellName
from skerry.model.resources import Megabytes
from skerry.node.cgroups.protocol import INIT_LEAF
from skerry.node.watched.groups import WatchedGroups
from skerry.node.watched.watcher import LimitWatcher
from tests.node.watched.processes import tagged

A, B = CellName("a"), CellName("a/b")
HOLDS = "import sys, time; held = b'x' * (int(sys.argv[1]) << 20); print(flush=True); time.sleep(1000)"


@pytest.fixture
def groups(tmp_path: Path) -> WatchedGroups:
    """The test is the init of the inner cell."""
    groups = WatchedGroups(tmp_path / "groups", "boot", limits_users=False)
    groups.create(A, CellLimits())
    groups.create(B, CellLimits())
    groups.add_leaf(B, INIT_LEAF)
    for leaf in ("_x1", "_x2"):
        groups.add_leaf(B, leaf)
    return groups


def test_the_largest_process_of_a_cell_over_its_limit_is_killed_and_counted(groups: WatchedGroups) -> None:
    large, small = groups.entry(B, "_x1", from_within=True), groups.entry(B, "_x2", from_within=True)
    with (
        tagged(large.marks, sys.executable, "-c", HOLDS, "80") as first,
        tagged(small.marks, sys.executable, "-c", HOLDS, "10") as second,
    ):
        watcher = LimitWatcher(groups, SystemClock())
        watcher.look(A)
        watcher.look(B)
        assert (first.poll(), second.poll()) == (None, None)
        groups.change_limits(A, CellLimits(memory=Megabytes(64)))
        watcher.look(A)
        assert first.wait() == -signal.SIGKILL
        watcher.look(A)
        assert second.poll() is None
    assert [groups.oom_kills(B, leaf) for leaf in ("_x1", "_x2")] == [1, 0]


def test_what_several_processes_share_is_counted_once(groups: WatchedGroups) -> None:
    fork = (
        "import os, time; held = b'x' * (40 << 20); [os.fork() for _ in range(2)]; "
        "print(flush=True); time.sleep(1000)"
    )
    with tagged(groups.entry(B, "_x1", from_within=True).marks, sys.executable, "-c", fork) as process:
        groups.change_limits(B, CellLimits(memory=Megabytes(100)))
        LimitWatcher(groups, SystemClock()).look(B)
        assert process.poll() is None
        assert groups.oom_kills(B, "_x1") == 0
        groups.kill(B)


def test_a_cell_with_too_many_processes_is_ended(groups: WatchedGroups) -> None:
    many = "for i in 1 2 3 4 5 6; do sleep 1000 & done; echo; wait"
    with tagged(groups.entry(B, "_x1", from_within=True).marks, "sh", "-c", many) as process:
        watcher = LimitWatcher(groups, SystemClock())
        groups.change_limits(B, CellLimits(pids=7))
        watcher.look(B)
        assert process.poll() is None
        groups.change_limits(B, CellLimits(pids=6))
        watcher.look(B)
        assert process.wait() == -signal.SIGKILL
    assert groups.oom_kills(B, "_x1") == 0
