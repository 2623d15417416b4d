from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.model.cells import Cell, CellLimits, Executable
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.records import CellRecord, CellRecords, ExitRecord, InitRecord, ProcessRecord

NAME = CellName("a/b-c")
CELL = CellRecord(Cell(NAME, CellLimits(memory=32)), uid=61184, boot="this", at=1.5)
SPEC = Executable(ExecutableName("hello world"), NAME, "echo $HOME")


@pytest.fixture
def records(tmp_path: Path) -> CellRecords:
    return CellRecords(tmp_path / "cells")


def test_what_was_written_is_found(records: CellRecords) -> None:
    records.add_cell(CELL)
    records.set_init(NAME, InitRecord(10, 20, 3))
    records.add_executable(SPEC, 4)
    records.set_started(NAME, 4, ProcessRecord(11, 2.5, ooms=1))
    records.set_exit(NAME, 4, ExitRecord(3.5, signal=9, oom=True))
    records.mark_freeing(NAME)
    (found,) = records.scan()
    assert (found.name, found.record, found.init, found.is_freeing) == (
        NAME,
        CELL,
        InitRecord(10, 20, 3),
        True,
    )
    (executable,) = found.executables
    assert executable.number == 4
    assert executable.spec == SPEC
    assert executable.started == ProcessRecord(11, 2.5, ooms=1)
    assert executable.exit == ExitRecord(3.5, signal=9, oom=True)


def test_what_is_not_there_is_not_found(records: CellRecords) -> None:
    records.folder(NAME, 1).mkdir(parents=True)
    (found,) = records.scan()
    assert (found.record, found.init, found.is_freeing) == (None, None, False)
    assert (found.executables[0].spec, found.executables[0].started, found.executables[0].exit) == (None,) * 3


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cell":{"name":"no_good"},"uid":1,"boot":"","at":1}'])
def test_a_record_that_makes_no_sense_is_none(records: CellRecords, text: str) -> None:
    records.add_cell(CELL)
    (records.folder(NAME) / "cell.json").write_text(text)
    assert [found.record for found in records.scan()] == [None]


def test_a_record_in_the_wrong_folder_is_none(records: CellRecords, tmp_path: Path) -> None:
    records.add_cell(CELL)
    (tmp_path / "cells" / "a.b-c").rename(tmp_path / "cells" / "other")
    assert [found.record for found in records.scan()] == [None]


def test_a_draft_that_a_crash_left_is_not_taken_for_the_record(records: CellRecords) -> None:
    records.add_cell(CELL)
    (records.folder(NAME) / ".init.json.new").write_text('{"pid":1,"start_time":1,"control_fd":3}')
    (found,) = records.scan()
    assert found.init is None
    records.set_init(NAME, InitRecord(10, 20, 3))
    assert next(records.scan()).init == InitRecord(10, 20, 3)


def test_no_two_cells_share_a_folder(records: CellRecords) -> None:
    names = [CellName(name) for name in ("a/b", "a-b", "ab", "a", "A", "a/b/c", "a-b/c")]
    assert len({records.folder(name) for name in names}) == len(names)


def test_removing_leaves_nothing(records: CellRecords, tmp_path: Path) -> None:
    records.add_cell(CELL)
    folder = records.add_executable(SPEC, 1)
    (folder / "stdout-0000000000000001").write_bytes(b"x")
    records.remove(NAME, 1)
    assert not folder.exists()
    records.remove(NAME)
    records.remove(NAME)
    assert list((tmp_path / "cells").iterdir()) == []


def test_what_a_crash_left_half_removed_goes_with_the_trash(records: CellRecords, tmp_path: Path) -> None:
    records.add_cell(CELL)
    records.folder(NAME).rename(tmp_path / "cells" / ".gone-3")
    records.empty_trash()
    assert list((tmp_path / "cells").iterdir()) == []


def test_others_cannot_look_in(records: CellRecords, tmp_path: Path) -> None:
    records.add_cell(CELL)
    folder = records.add_executable(SPEC, 1)
    assert [p.stat().st_mode & 0o077 for p in (tmp_path / "cells", folder, folder / "spec.json")] == [0, 0, 0]


def _end(records: CellRecords, number: int, output: str) -> None:
    folder = records.add_executable(SPEC, number)
    (folder / "stdout-0000000000000001").write_text(output)


def test_one_previous_run_is_kept_and_is_no_executable(records: CellRecords, tmp_path: Path) -> None:
    records.add_cell(CELL)
    for number, output in ((1, "first"), (2, "second")):
        _end(records, number, output)
        records.keep_as_previous(NAME, number)
    assert (records.previous(NAME) / "stdout-0000000000000001").read_text() == "second"
    (found,) = records.scan()
    assert found.executables == ()
    assert [path.name for path in (tmp_path / "cells").iterdir()] == ["a.b-c"]
    records.remove(NAME)
    assert not records.previous(NAME).exists()


def test_a_crash_while_a_run_becomes_the_previous_one_loses_no_run(
    records: CellRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.add_cell(CELL)
    _end(records, 1, "first")
    records.keep_as_previous(NAME, 1)
    _end(records, 2, "second")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    rename, names = os.rename, iter(["the older one is discarded"])
    monkeypatch.setattr(os, "rename", lambda *pair: rename(*pair) if next(names, "") else killed())
    with pytest.raises(KeyboardInterrupt):
        records.keep_as_previous(NAME, 2)
    monkeypatch.undo()
    after = CellRecords(tmp_path / "cells")
    after.empty_trash()
    (found,) = after.scan()
    assert [each.number for each in found.executables] == [2]
    after.keep_as_previous(NAME, 2)
    assert (after.previous(NAME) / "stdout-0000000000000001").read_text() == "second"
