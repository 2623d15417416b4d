"""Files are whole or absent, and folders are held by one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.kit import files


def test_a_written_file_has_its_content_and_exactly_its_mode(tmp_path: Path) -> None:
    previous = os.umask(0o000)
    try:
        files.write_atomically(tmp_path / "key", b"secret", files.PRIVATE)
    finally:
        os.umask(previous)
    assert (tmp_path / "key").read_bytes() == b"secret"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_file_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "state"
    files.write_atomically(target, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


KILLED_WRITE = """
import os, signal, sys
from pathlib import Path
from skerry.kit import files
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(Path(sys.argv[1]), b"new")
"""


def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    stays = [tmp_path / ".profile", tmp_path / "sub" / "a.0123456789ab", tmp_path / "sub" / "file"]
    for path in (*stays, tmp_path / "file"):
        path.write_bytes(b"old")
    (tmp_path / ".folder.0123456789ab").mkdir()
    for path in (tmp_path / "file", tmp_path / "sub" / "file"):
        ended = subprocess.run([sys.executable, "-c", KILLED_WRITE, str(path)], check=False)
        assert ended.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("**/.file.*"))) == 2
    files.remove_unfinished(tmp_path)
    assert list(tmp_path.glob("**/.file.*")) == []
    assert (tmp_path / ".folder.0123456789ab").is_dir()
    assert {path.read_bytes() for path in (*stays, tmp_path / "file")} == {b"old"}
    files.remove_unfinished(tmp_path / "absent")


def test_a_private_folder_is_closed_to_others_even_if_it_was_open(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True, mode=0o755)
    files.private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_held_folder_names_the_process_that_holds_it(tmp_path: Path) -> None:
    lock = files.FolderLock(tmp_path)
    lock.acquire()
    try:
        with pytest.raises(files.FolderLocked) as held:
            files.FolderLock(tmp_path).acquire()
        assert held.value.pid == os.getpid()
    finally:
        lock.release()
    again = files.FolderLock(tmp_path)
    again.acquire()
    again.release()


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from skerry.kit.files import FolderLock\n"
        f"FolderLock(pathlib.Path({str(tmp_path)!r})).acquire(); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(files.FolderLocked) as held:
            files.FolderLock(tmp_path).acquire()
        assert held.value.pid == holder.pid
        holder.kill()
        holder.wait()
    lock = files.FolderLock(tmp_path)
    lock.acquire()
    lock.release()


def test_a_lock_that_is_passed_on_is_held_until_its_last_holder_lets_go(tmp_path: Path) -> None:
    former, later = files.FolderLock(tmp_path), files.FolderLock(tmp_path)
    former.acquire()
    later.adopt(os.dup(former.descriptor))
    former.leave()
    with pytest.raises(files.FolderLocked) as held:
        files.FolderLock(tmp_path).acquire()
    assert held.value.pid == os.getpid()
    later.release()
    former.acquire()
    former.release()


def test_folders_that_are_to_be_spread_are_marked_so_where_the_file_system_knows_that(tmp_path: Path) -> None:
    files.spread_folders(tmp_path)
    files.spread_folders(tmp_path)
    listed = subprocess.run(("lsattr", "-d", tmp_path), capture_output=True, text=True, check=False)
    if subprocess.run(("chattr", "+T", tmp_path), capture_output=True, check=False).returncode == 0:
        assert "T" in listed.stdout.split()[0]


def test_a_file_system_without_such_a_mark_is_no_error() -> None:
    files.spread_folders(Path("/proc/self"))
