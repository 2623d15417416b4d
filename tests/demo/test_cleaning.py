"""Removal of a demo: what its record names goes, and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.demo import cleaning
from skerry.demo.record import DemoRecord, GroupsRecord, ProcessRecord, start_time


@pytest.fixture
def record(tmp_path: Path) -> DemoRecord:
    folder = tmp_path / "demo"
    folder.mkdir()
    made = DemoRecord(folder)
    made.create()
    return made


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def test_recorded_processes_end_and_the_folder_goes(record: DemoRecord) -> None:
    process = record.start("sleeper", ["sleep", "1000"], output=record.folder / "log")
    (record.folder / "cloud").mkdir()
    (record.folder / "cloud" / "data").write_text("data")
    assert cleaning.clean(record.folder) == cleaning.Removed(1, 0)
    assert start_time(process.pid) is None
    process.wait()  # it was waited for; Popen learns that
    assert not record.folder.exists()


def test_another_process_with_a_recorded_pid_is_left_alone(
    record: DemoRecord, bystander: subprocess.Popen[bytes]
) -> None:
    started = start_time(bystander.pid)
    assert started is not None
    record.add(ProcessRecord("one that had this pid before", bystander.pid, started - 1))
    assert cleaning.clean(record.folder) == cleaning.Removed(0, 0)
    assert bystander.poll() is None


def test_a_folder_without_a_record_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("not of a demo")
    assert cleaning.clean(tmp_path) == cleaning.Removed(0, 0)
    assert (tmp_path / "mine").exists()


def test_links_in_the_folder_are_removed_and_not_followed(record: DemoRecord, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("not of a demo")
    (record.folder / "link").symlink_to(tmp_path / "mine")
    cleaning.clean(record.folder)
    assert (tmp_path / "mine" / "file").exists()


@pytest.mark.root
def test_cgroups_go_with_the_processes_in_them(
    record: DemoRecord, bystander: subprocess.Popen[bytes]
) -> None:
    prefix = f"skerry-demo-test-{os.getpid()}-"
    hierarchies = [Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup")]
    group = next(path for path in hierarchies if (path / "cgroup.procs").exists()) / f"{prefix}oslo"
    record.add(GroupsRecord(prefix))
    (group / "cell").mkdir(parents=True)
    (group / "cell" / "cgroup.procs").write_text(str(bystander.pid))
    assert cleaning.groups_of(prefix) == [group]
    assert list(cleaning.pids_of(group)) == [bystander.pid]
    assert cleaning.clean(record.folder) == cleaning.Removed(0, 1)
    assert not group.exists()
    assert bystander.wait() != 0
