"""Records on disk are whole or absent, and what is removed is out of sight at once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from skerry.node import record_files
from skerry.node.record_files import RecordFiles, RecordFolders, UnreadableRecord


class Thing(msgspec.Struct, frozen=True):
    name: str
    size: int = 0


def things(folder: Path) -> RecordFiles[Thing]:
    return RecordFiles(folder, Thing, lambda thing: thing.name)


def test_what_was_saved_last_is_what_the_next_one_finds(tmp_path: Path) -> None:
    records = things(tmp_path / "all")
    for record in (Thing("b"), Thing("a"), Thing("b", 2), Thing("c")):
        records.save(record)
    records.remove("c")
    records.remove("c")
    records.sync(["a", "gone"])
    assert list(things(tmp_path / "all").scan()) == [Thing("a"), Thing("b", 2)]
    assert (tmp_path / "all" / "a.json").stat().st_mode & 0o777 == 0o600
    records.keep_only(["a"])
    assert list(records.scan()) == [Thing("a")]


def test_drafts_go_and_what_is_no_record_is_told_of(tmp_path: Path) -> None:
    records = things(tmp_path)
    records.save(Thing("a"))
    (tmp_path / ".a.json.new").write_text("{")
    (tmp_path / "odd.json").write_text("{}")
    (tmp_path / "other.json").write_bytes((tmp_path / "a.json").read_bytes())
    reported: list[str] = []
    assert list(records.scan(lambda path, _why: reported.append(path.name))) == [Thing("a")]
    assert reported == ["odd.json"]
    assert not (tmp_path / ".a.json.new").exists()


def test_a_file_that_is_not_there_or_not_understood_is_none(tmp_path: Path) -> None:
    assert record_files.read(tmp_path / "none.json", Thing) is None
    (tmp_path / "file").write_text("no JSON")
    assert record_files.read(tmp_path / "file" / "below.json", Thing) is None
    with pytest.raises(UnreadableRecord, match="not valid JSON"):
        record_files.load(tmp_path / "file", Thing)


def test_a_folder_that_is_discarded_never_takes_the_place_of_one_that_a_crash_left(tmp_path: Path) -> None:
    for name in (".gone-0", ".gone-4", ".gone-i-old", ".new-web", "web", "db"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record").touch()
    folders = RecordFolders(tmp_path)
    left = folders.leftovers()
    assert sorted(path.name for path in left) == [".gone-0", ".gone-4", ".gone-i-old", ".new-web"]
    trash = folders.discard(tmp_path / "web")
    assert trash is not None
    assert trash not in left
    assert (trash / "record").exists()
    assert folders.discard(tmp_path / "web") is None
