"""Disk space of last resort: given up in portions, allocated again, and refused for what adds."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.kit import disk_monitor, disk_reserve, files
from skerry.kit.disk_monitor import DiskMonitor
from skerry.kit.disk_reserve import DiskReserve
from tests.support.disks import SmallDisk, small_disk

needs_root = pytest.mark.root(tries=1)
SIZE = 2 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, megabytes=16) as made:
        yield made


class FullDisk:
    """Refuses to be written to a number of times."""

    def __init__(self, times: int, number: int = errno.ENOSPC) -> None:
        self.times = times
        self._number = number

    def write(self) -> str:
        if self.times:
            self.times -= 1
            raise OSError(self._number, os.strerror(self._number))
        return "written"


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[DiskReserve]:
    made = DiskReserve(tmp_path, SIZE)
    made.refill()
    with disk_reserve.installed(made):
        yield made


def test_a_write_on_a_full_disk_is_tried_again_with_a_portion_of_the_reserve(kept: DiskReserve) -> None:
    assert disk_reserve.spend(FullDisk(times=2, number=errno.EDQUOT).write) == "written"
    assert SIZE // 2 < kept.held < SIZE
    assert kept.is_short
    assert "is full" in disk_reserve.shortage()


def test_a_write_fails_when_the_reserve_is_used_up(kept: DiskReserve) -> None:
    with pytest.raises(OSError, match="No space left"):
        disk_reserve.spend(FullDisk(times=1000).write)
    assert kept.held == 0


def test_only_a_full_disk_takes_of_the_reserve(kept: DiskReserve) -> None:
    with pytest.raises(OSError, match="Read-only"):
        disk_reserve.spend(FullDisk(times=1, number=errno.EROFS).write)
    assert kept.held == SIZE
    assert disk_reserve.shortage() == ""


def test_without_a_reserve_a_write_just_fails() -> None:
    with pytest.raises(OSError, match="No space left"):
        disk_reserve.spend(FullDisk(times=1).write)
    assert disk_reserve.shortage() == ""


def test_what_an_earlier_process_left_of_the_reserve_is_found_and_filled_up(kept: DiskReserve) -> None:
    kept.release()
    found = DiskReserve(kept.folder, SIZE)
    assert (found.held, found.is_short) == (kept.held, True)
    found.refill()
    assert not found.is_short
    smaller = DiskReserve(kept.folder, SIZE // 2)
    smaller.refill()
    assert (kept.folder / disk_reserve.FILE_NAME).stat().st_size == SIZE // 2


def test_a_reserve_that_somebody_removed_for_its_space_is_used_up_and_made_again(kept: DiskReserve) -> None:
    (kept.folder / disk_reserve.FILE_NAME).unlink()
    assert disk_reserve.spend(FullDisk(times=1).write) == "written"
    assert kept.held == 0
    with pytest.raises(OSError, match="No space left"):
        disk_reserve.spend(FullDisk(times=1).write)
    kept.refill()
    (kept.folder / disk_reserve.FILE_NAME).unlink()
    kept.refill()
    assert (kept.folder / disk_reserve.FILE_NAME).stat().st_size == SIZE


def test_what_a_file_system_keeps_for_root_is_free_to_root_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = SIZE // 4096
    whole = os.statvfs_result((4096, 4096, 9 * blocks, 4 * blocks, 0, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: whole)
    for uid, free in ((0, 4 * SIZE), (1000, 0)):
        monkeypatch.setattr(os, "geteuid", lambda uid=uid: uid)
        kept = DiskReserve(tmp_path / str(uid), SIZE)
        kept.folder.mkdir()
        kept.refill()
        assert disk_monitor.free_bytes(tmp_path) == free
        assert kept.is_short == (uid != 0), "a disk with space is not said to be full"


@needs_root
async def test_a_monitor_says_what_is_wrong_and_refills_the_reserve_when_there_is_room(
    disk: SmallDisk,
) -> None:
    kept = DiskReserve(disk.root, SIZE)
    monitor = DiskMonitor(disk.root, kept)
    assert await monitor.check() == ""
    assert kept.held == SIZE
    disk.fill()
    assert "is full" in await monitor.check()
    with disk_reserve.installed(kept):
        files.write_atomically(disk.root / "record", b"kept")
    assert (disk.root / "record").read_bytes() == b"kept"
    assert "2 MB are to be kept in reserve" in await monitor.check()
    assert monitor.condition == f"the disk of {disk.root} takes no writes"
    disk.empty()
    assert await monitor.check() == ""
    assert monitor.condition == ""
    assert kept.held == SIZE
    assert {path.name for path in disk.root.iterdir()} == {"record", "reserve", "lost+found"}


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "is full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "input/output error"),
    ],
)
def test_a_disk_that_refuses_is_told_in_plain_words(tmp_path: Path, number: int, says: str) -> None:
    error = OSError(number, os.strerror(number))
    assert disk_monitor.refuses(error)
    told = disk_monitor.explain(error, tmp_path / "not" / "there")
    assert says in told
    assert str(tmp_path) in told


def test_an_error_that_no_disk_is_to_blame_for_is_none_of_ours() -> None:
    assert not disk_monitor.refuses(FileNotFoundError(errno.ENOENT, "x"))
