"""A cell is held to its limits by looking at it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from skerry.kit.clock import ManualClock, SystemClock
from skerry.model.cells import CellLimits
from skerry.model.ids import CellName
from skerry.model.resources import Megabytes
from skerry.node.cgroups.protocol import INIT_LEAF
from skerry.node.watched.groups import WatchedGroups
from skerry.node.watched.process_table import ProcessStatus
from skerry.node.watched.watcher import LimitWatcher
from tests.node.watched.processes import tagged
from tests.support.waiting import eventually_sync

A, B = CellName("a"), CellName("a/b")
HOLDS = "import sys, time; held = b'x' * (int(sys.argv[1]) << 20); print(flush=True); time.sleep(1000)"


@pytest.fixture
def groups(tmp_path: Path) -> CountingGroups:
    """The test is the init of the inner cell."""
    groups = CountingGroups(tmp_path / "groups", "boot", limits_users=False)
    groups.create(A, CellLimits())
    groups.create(B, CellLimits())
    groups.add_leaf(B, INIT_LEAF)
    for leaf in ("_x1", "_x2"):
        groups.add_leaf(B, leaf)
    return groups


def test_the_largest_process_of_a_cell_over_its_limit_is_killed_and_counted(groups: CountingGroups) -> None:
    large, small = groups.entry(B, "_x1", from_within=True), groups.entry(B, "_x2", from_within=True)
    with (
        tagged(large.marks, sys.executable, "-c", HOLDS, "80") as first,
        tagged(small.marks, sys.executable, "-c", HOLDS, "10") as second,
    ):
        watcher = LimitWatcher(groups, SystemClock())
        watcher.look(A)
        watcher.look(A)
        assert (first.poll(), second.poll()) == (None, None)
        groups.change_limits(A, CellLimits(memory=Megabytes(64)))
        watcher.look(A)
        assert first.wait() == -signal.SIGKILL
        watcher.look(A)
        assert second.poll() is None
    assert [groups.oom_kills(B, leaf) for leaf in ("_x1", "_x2")] == [1, 0]


def test_what_several_processes_share_is_counted_once(groups: CountingGroups) -> None:
    fork = (
        "import os, time; held = b'x' * (40 << 20); [os.fork() for _ in range(2)]; "
        "print(flush=True); time.sleep(1000)"
    )
    with tagged(groups.entry(B, "_x1", from_within=True).marks, sys.executable, "-c", fork) as process:
        groups.change_limits(B, CellLimits(memory=Megabytes(100)))
        LimitWatcher(groups, SystemClock()).look(A)
        assert process.poll() is None
        assert groups.oom_kills(B, "_x1") == 0
        groups.kill(B)


def test_a_cell_with_too_many_processes_is_ended(groups: CountingGroups) -> None:
    many = "for i in 1 2 3 4 5 6; do sleep 1000 & done; echo; wait"
    with tagged(groups.entry(B, "_x1", from_within=True).marks, "sh", "-c", many) as process:
        watcher = LimitWatcher(groups, SystemClock())
        groups.change_limits(B, CellLimits(pids=7))
        watcher.look(A)
        assert process.poll() is None
        groups.change_limits(B, CellLimits(pids=6))
        watcher.look(A)
        assert process.wait() == -signal.SIGKILL
    assert groups.oom_kills(B, "_x1") == 0


class CountingGroups(WatchedGroups):
    """Counts how often the processes of cells are looked for."""

    searches = 0

    def processes(self, cell: CellName) -> tuple[ProcessStatus | None, list[ProcessStatus]]:
        self.searches += 1
        return super().processes(cell)


def test_processes_are_looked_for_again_only_where_one_ran(groups: CountingGroups) -> None:
    clock = ManualClock()
    groups.change_limits(B, CellLimits(memory=Megabytes(1000)))
    grow = (
        "import sys, time; print(flush=True); sys.stdin.readline(); held = b'x' * (80 << 20); "
        "print(flush=True); time.sleep(1000)"
    )
    with tagged(groups.entry(B, "_x1", from_within=True).marks, sys.executable, "-c", grow) as process:
        watcher = LimitWatcher(groups, clock)
        eventually_sync(lambda: _is_quiet(watcher, groups), what="a look that finds nothing new")
        watcher.look(A)
        groups.change_limits(B, CellLimits(memory=Megabytes(64)))
        watcher.look(A)
        assert process.poll() is None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        watcher.look(A)
        assert process.wait() == -signal.SIGKILL


def _is_quiet(watcher: LimitWatcher, groups: CountingGroups) -> bool:
    before = groups.searches
    watcher.look(A)
    return groups.searches == before


def test_a_process_that_nobody_seemed_to_start_is_found_a_second_later(groups: CountingGroups) -> None:
    clock = ManualClock()
    groups.change_limits(B, CellLimits(memory=Megabytes(64)))
    watcher = LimitWatcher(groups, clock)
    # The test itself is no process of the cell until then: as if another had started it without running.
    watcher.look(A)
    with tagged(groups.entry(B, "_x1", from_within=True).marks, sys.executable, "-c", HOLDS, "80") as process:
        watcher.look(A)
        assert process.poll() is None
        clock.advance(1.0)
        watcher.look(A)
        assert process.wait() == -signal.SIGKILL
