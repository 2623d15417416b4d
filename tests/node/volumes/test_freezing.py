"""A frozen file system is consistent in every copy, and is thawed whatever happens to who froze it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.node.containers.disk_images import SMALLEST, DiskImages
from skerry.node.volumes import freezing, image_files
from skerry.node.volumes.work_progress import WorkProgress
from tests.node.containers.real import stuck_loops
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = pytest.mark.root

# Two files, of which the second is never ahead of the first, nor more than one behind.
WRITER = """
import os, sys
folder, number = int(sys.argv[1]), 0
files = [os.open(name, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=folder) for name in ("first", "second")]
while True:
    number += 1
    for file in files:
        os.pwrite(file, b"%020d" % number, 0)
    if number == 1:
        print("begun", flush=True)
"""
FREEZER = """
import sys, time
from skerry.node.volumes import freezing
with freezing.frozen(int(sys.argv[1])):
    print("frozen", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a mounted file system, whose file is `image`."""
    images = DiskImages(tmp_path / "images")
    found = images.make_detached(tmp_path / "image", SMALLEST)
    yield found
    os.close(found)
    images.close()
    eventually_sync(lambda: stuck_loops(tmp_path) == [])


@pytest.fixture
def writer(mount: int) -> Iterator[subprocess.Popen[bytes]]:
    folder = os.open(f"/proc/self/fd/{mount}/.", os.O_RDONLY | os.O_DIRECTORY)
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], pass_fds=[folder], stdout=subprocess.PIPE
    )
    os.close(folder)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    yield process
    process.kill()
    process.wait(PATIENCE_S)
    process.stdout.close()


def numbers(mount: int) -> tuple[int, int]:
    first, second = ((Path(f"/proc/self/fd/{mount}") / name).read_text() for name in ("first", "second"))
    return int(first), int(second)


def copied_numbers(image: Path, target: Path) -> tuple[int, int]:
    """What the files of a copy hold, whose file system must be without a fault."""
    checked = subprocess.run(["e2fsck", "-fn", str(image)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    for name in ("first", "second"):
        subprocess.run(["debugfs", "-R", f"dump {name} {target / name}", str(image)], check=True, stderr=-3)
    first, second = ((target / name).read_text() for name in ("first", "second"))
    return int(first), int(second)


def test_every_copy_under_a_writer_holds_what_the_writer_promises(
    mount: int, writer: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    seen = []
    for turn in range(5):
        copy = tmp_path / f"copy-{turn}"
        with freezing.frozen(mount):
            image_files.copy(tmp_path / "image", copy, WorkProgress())
            before = numbers(mount)
        first, second = copied_numbers(copy, tmp_path)
        assert (first, second) == before
        assert first - second in (0, 1)
        seen.append(first)
        eventually_sync(lambda first=first: numbers(mount)[0] > first, what="the writer goes on")
    assert seen == sorted(set(seen))


def test_it_is_thawed_when_the_work_fails(mount: int, writer: subprocess.Popen[bytes]) -> None:
    with pytest.raises(KeyError), freezing.frozen(mount):
        raise KeyError
    assert not freezing.thaw(mount)


def test_it_is_thawed_when_the_agent_is_killed(mount: int, writer: subprocess.Popen[bytes]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FREEZER, str(mount)], pass_fds=[mount], stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"frozen\n"
        with pytest.raises(errors.FailedPrecondition, match="frozen"), freezing.frozen(mount):
            pass
        agent.send_signal(signal.SIGKILL)
        agent.wait(PATIENCE_S)
    before = numbers(mount)
    eventually_sync(lambda: numbers(mount) > before, what="the writer goes on")


def test_one_that_somebody_else_thaws_is_no_consistent_copy(mount: int) -> None:
    with pytest.raises(errors.Unavailable, match="thawed"), freezing.frozen(mount):
        assert [freezing.thaw(mount) for _ in range(2)] == [True, False]
