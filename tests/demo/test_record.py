"""The record of a demo: entries are on disk before what they name exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.demo import record
from skerry.demo.record import DemoRecord, GroupsRecord, ProcessRecord


@pytest.fixture
def made(tmp_path: Path) -> DemoRecord:
    made = DemoRecord(tmp_path)
    made.create()
    return made


def test_entries_are_read_back_in_their_order(made: DemoRecord) -> None:
    entries = [GroupsRecord("skerry-demo-1-"), ProcessRecord("machine oslo", 17, 4711)]
    for entry in entries:
        made.add(entry)
    assert made.entries() == entries


def test_a_line_that_was_cut_off_counts_for_nothing(made: DemoRecord) -> None:
    made.add(GroupsRecord("a"))
    made.add(GroupsRecord("b"))
    made.path.write_bytes(made.path.read_bytes()[:-3])
    assert made.entries() == [GroupsRecord("a")]


def test_without_a_record_there_are_no_entries(tmp_path: Path) -> None:
    assert DemoRecord(tmp_path).entries() == []
    assert not DemoRecord(tmp_path).exists()


def test_a_second_record_is_refused(made: DemoRecord) -> None:
    with pytest.raises(FileExistsError):
        made.create()


def test_a_process_is_recorded_before_its_program_runs(made: DemoRecord) -> None:
    output = made.folder / "output"
    script = f"import os; print(os.getpid()); print(open({str(made.path)!r}).read())"
    process = made.start("reader", [sys.executable, "-c", script], output=output)
    assert process.wait() == 0
    pid, line, *_ = output.read_text().splitlines()
    assert int(pid) == process.pid
    assert record.parse(f"{line}\n".encode()) == made.entries()
    (entry,) = made.entries()
    assert isinstance(entry, ProcessRecord)
    assert (entry.name, entry.pid) == ("reader", process.pid)


def test_a_program_whose_record_was_not_written_does_not_run(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", record._BARRIER, "sh", "touch", str(tmp_path / "ran")],
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode != 0
    assert not (tmp_path / "ran").exists()


def test_a_process_is_known_by_its_start_time() -> None:
    started = record.start_time(os.getpid())
    assert started is not None
    assert record.is_alive(ProcessRecord("me", os.getpid(), started))
    assert not record.is_alive(ProcessRecord("an earlier one", os.getpid(), started - 1))


def test_a_process_that_is_gone_has_no_start_time() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert record.start_time(gone.pid) is None
