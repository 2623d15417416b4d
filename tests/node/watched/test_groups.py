"""Which processes belong to a cell, and to which executable of it, without cgroups."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import CellLimits
from skerry.model.ids import CellName
from skerry.model.resources import Megabytes
from skerry.node.cgroups.protocol import INIT_LEAF
from skerry.node.watched import process_table
from skerry.node.watched.groups import WatchedGroups
from tests.node.watched.processes import tagged
from tests.support.waiting import eventually_sync

A, B = CellName("a"), CellName("a/b")
# An init that starts what it is told with a tag, and says its pid.
INIT = """
import os, resource, sys
print(flush=True)
for line in sys.stdin:
    tag, command = line.split(None, 1)
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(10, (int(tag),) * 2)
        os.execvp("sh", ["sh", "-c", command])
    print(pid, flush=True)
"""
PROGRAM = (sys.executable, "-I", "-S", "-u", "-c", INIT)


@pytest.fixture
def groups(tmp_path: Path) -> WatchedGroups:
    groups = WatchedGroups(tmp_path / "groups", "boot", limits_users=True)
    groups.create(A, CellLimits())
    groups.add_leaf(A, INIT_LEAF)
    return groups


def tag_of(groups: WatchedGroups, leaf: str) -> int:
    marks = groups.entry(A, leaf, from_within=True).marks
    assert marks is not None
    return marks.tag


def test_a_process_is_part_of_the_executable_whose_tag_it_inherited_also_as_an_orphan(
    groups: WatchedGroups,
) -> None:
    entry = groups.entry(A, INIT_LEAF)
    with tagged(entry.marks, *PROGRAM) as init:
        entry.began(init.pid)
        started = {}
        for leaf in ("_x1", "_x2"):
            groups.add_leaf(A, leaf)
            assert init.stdin is not None
            assert init.stdout is not None
            init.stdin.write(f"{tag_of(groups, leaf)} sleep 1000 & sleep 1000\n".encode())
            init.stdin.flush()
            started[leaf] = int(init.stdout.readline())
        eventually_sync(lambda: len(groups.pids(A)) == 7, what="two shells with two children each")
        for leaf, pid in started.items():
            assert pid in groups.pids(A, leaf)
            assert len(groups.pids(A, leaf)) == 3
        assert groups.pids(A, INIT_LEAF) == [init.pid]
        assert init.pid not in groups.members(A)
        left = set(groups.pids(A, "_x2"))
        groups.kill(A, "_x1")
        eventually_sync(lambda: not groups.pids(A, "_x1"), what="the end of the first")
        assert set(groups.pids(A, "_x2")) == left
        with pytest.raises(errors.FailedPrecondition):
            groups.remove(A)
        groups.kill(A)
        eventually_sync(lambda: not groups.pids(A), what="the end of all")
    groups.remove(A)
    assert groups.cells() == []


def test_a_process_that_lowered_its_tag_is_ended_with_its_executable_and_its_kills_are_counted(
    groups: WatchedGroups,
) -> None:
    entry = groups.entry(A, INIT_LEAF)
    with tagged(entry.marks, *PROGRAM) as init:
        entry.began(init.pid)
        for leaf in ("_x1", "_x2"):
            groups.add_leaf(A, leaf)
        lower = (
            f"{sys.executable} -ISc 'import os, resource; resource.setrlimit(10, (1, 1)); "
            'os.execvp("sleep", ["sleep", "1000"])\''
        )
        assert init.stdin is not None
        init.stdin.write(f"{tag_of(groups, '_x1')} {lower} & wait\n".encode())
        init.stdin.flush()
        eventually_sync(lambda: any(process_table.tag(each) == 1 for each in groups.pids(A)), what="it")
        [hidden] = [each for each in groups.pids(A) if process_table.tag(each) == 1]
        assert hidden in groups.pids(A, "_x1")
        assert hidden not in groups.pids(A, "_x2")
        groups.count_oom(A, hidden)
        assert [groups.oom_kills(A, leaf) for leaf in ("_x1", "_x2")] == [1, 0]
        groups.kill(A, "_x1")
        eventually_sync(lambda: groups.pids(A) == [init.pid], what="its end")


def test_what_an_init_left_that_shared_the_pids_of_the_machine_is_found_by_its_tag(
    groups: WatchedGroups, tmp_path: Path
) -> None:
    entry = groups.entry(A, INIT_LEAF)
    groups.add_leaf(A, "_x1")
    with (
        tagged(entry.marks, *PROGRAM) as init,
        tagged(groups.entry(A, "_x1").marks, "sh", "-c", "echo; exec sleep 1000") as left,
    ):
        entry.began(init.pid)
        init.kill()
        init.wait()
        assert groups.pids(A) == groups.pids(A, "_x1") == [left.pid]
        next_agent = WatchedGroups(tmp_path / "groups", "boot", limits_users=True)
        assert next_agent.pids(A) == [left.pid]
        next_agent.kill(A)
        assert left.wait() == -signal.SIGKILL


def test_an_init_that_no_record_names_is_found(groups: WatchedGroups) -> None:
    """The agent was killed after its start."""
    with tagged(groups.entry(A, INIT_LEAF).marks, *PROGRAM) as init:
        assert groups.pids(A) == groups.pids(A, INIT_LEAF) == [init.pid]


def test_a_reused_pid_is_not_taken_for_the_init(groups: WatchedGroups, tmp_path: Path) -> None:
    entry = groups.entry(A, INIT_LEAF)
    entry.began(os.getpid())
    record = next((tmp_path / "groups").rglob("init.json"))
    found = process_table.status(os.getpid())
    assert found is not None
    record.write_text(record.read_text().replace(str(found.start_time), str(found.start_time - 1)))
    next_agent = WatchedGroups(tmp_path / "groups", "boot", limits_users=True)
    assert next_agent.pids(A) == []


def test_groups_of_an_earlier_boot_are_removed(groups: WatchedGroups, tmp_path: Path) -> None:
    assert WatchedGroups(tmp_path / "groups", "boot", limits_users=True).cells() == [A]
    assert WatchedGroups(tmp_path / "groups", "next", limits_users=True).cells() == []
    assert [path.name for path in (tmp_path / "groups").iterdir()] == ["next"]


def test_the_kernel_counts_processes_only_where_a_cell_has_a_user_of_its_own(tmp_path: Path) -> None:
    for own, expected in ((True, 9), (False, 0)):
        groups = WatchedGroups(tmp_path / str(own), "boot", limits_users=own)
        groups.create(A, CellLimits(pids=10))
        groups.create(B, CellLimits(pids=50))
        groups.add_leaf(B, "_x1")
        marks = groups.entry(B, "_x1", from_within=True).marks
        assert marks is not None
        assert marks.processes == expected


def test_usage_counts_what_has_ended(groups: WatchedGroups) -> None:
    entry = groups.entry(A, INIT_LEAF)
    burn = "echo; python3 -c 'for _ in range(3000000): pass'; echo; exec sleep 1000"
    with tagged(entry.marks, "sh", "-c", burn) as init:
        entry.began(init.pid)
        assert init.stdout is not None
        init.stdout.readline()
        usage = groups.usage(A)
        assert usage.cpu_ns > 0
        assert usage.pids == 1
        assert 0 < usage.memory_bytes <= usage.memory_peak_bytes


def test_limits_can_be_changed_and_those_that_are_not_given_stay(groups: WatchedGroups) -> None:
    groups.change_limits(A, CellLimits(memory=Megabytes(64), pids=10))
    groups.change_limits(A, CellLimits(pids=20))
    assert groups.read_limits(A) == CellLimits(memory=Megabytes(64), pids=20)


def test_a_skerry_in_a_cell_of_another_has_tags_below_that_of_the_cell(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from pathlib import Path; "
        "resource.setrlimit(10, (1 << 40,) * 2); "
        "from skerry.model.cells import CellLimits; from skerry.node.watched.groups import WatchedGroups; "
        "groups = WatchedGroups(Path(sys.argv[1]), 'boot', limits_users=False); "
        "groups.create('a', CellLimits()); "
        "[groups.add_leaf('a', leaf) for leaf in ('_init', '_x1')]; "
        "[each.marks.set_tag() for each in "
        "(groups.pool_entry(), groups.entry('a', '_init'), groups.entry('a', '_x1'))]"
    )
    done = subprocess.run((sys.executable, "-c", program, tmp_path), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_leaf_whose_tag_was_not_written_gets_one(groups: WatchedGroups, tmp_path: Path) -> None:
    """The agent was killed, or the disk full."""
    next((tmp_path / "groups").rglob("tag")).write_text("")
    groups.add_leaf(A, INIT_LEAF)
    assert tag_of(groups, INIT_LEAF)
