"""File systems that are made ahead: like any other once they are taken, and gone without a trace if not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.model.resources import Gigabytes, Resources
from skerry.node.containers import disk_image_pool, state
from skerry.node.containers.disk_image_pool import PER_SIZE, DiskImagePool
from skerry.node.containers.disk_images import SMALLEST, DiskImages
from skerry.node.containers.writable_layers import DiskLimitKind, OpenLayer, WritableLayers
from skerry.node.kernel import thread_syscalls
from tests.node.containers.real import Agent, needs_runc, spec
from tests.support.waiting import eventually, eventually_sync

pytestmark = pytest.mark.root

MB = 1024**2
KILLED = """
import os, pathlib, signal, sys
from skerry.node.containers.disk_image_pool import DiskImagePool
from skerry.node.containers.disk_images import SMALLEST, DiskImages
folder = pathlib.Path(sys.argv[1])
pool = DiskImagePool(DiskImages(folder / "systems"))
pool.take(folder / "image", SMALLEST, folder)
pool.refill()
os.kill(os.getpid(), signal.SIGKILL)
"""


def loops(folder: Path) -> list[str]:
    """Files below `folder` that are loop devices now."""
    found = []
    for device in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            path = device.read_text().strip()
        except OSError:  # it has gone meanwhile
            continue
        if path.startswith(f"{folder}/"):
            found.append(path)
    return found


@pytest.fixture
def images(tmp_path: Path) -> Iterator[DiskImages]:
    images = DiskImages(tmp_path / "systems")
    yield images
    images.close()
    assert not (tmp_path / "systems").exists()
    eventually_sync(lambda: loops(tmp_path) == [])


@pytest.fixture
def pool(images: DiskImages) -> Iterator[DiskImagePool]:
    pool = DiskImagePool(images)
    yield pool
    pool.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    return place


def test_one_that_is_taken_is_a_file_system_of_that_size_under_the_name_that_was_asked(
    pool: DiskImagePool, images: DiskImages, tmp_path: Path, place: Path
) -> None:
    image, other = tmp_path / "image", tmp_path / "other"
    assert not pool.take(image, SMALLEST, place), "nobody has wanted one before"
    assert (image.exists(), os.path.ismount(place)) == (False, False)
    pool.refill()
    assert pool.count == PER_SIZE
    assert pool.take(image, SMALLEST, place)
    assert pool.count == PER_SIZE - 1
    status = os.statvfs(place)
    (place / "file").write_text("content")
    thread_syscalls.unmount(str(place))
    images.mount(image, place)
    assert (place / "file").read_text() == "content"
    thread_syscalls.unmount(str(place))
    images.ensure(other, SMALLEST)
    images.mount(other, place)
    assert os.statvfs(place)[:6] == status[:6], "it is as large as one that is made when it is wanted"
    thread_syscalls.unmount(str(place))


def test_no_two_are_the_same(pool: DiskImagePool, tmp_path: Path, place: Path) -> None:
    pool.take(tmp_path / "none", SMALLEST, place)
    pool.refill()
    for name in ("one", "two"):
        assert pool.take(tmp_path / name, SMALLEST, place)
        assert not (place / "file").exists()
        (place / "file").touch()
        thread_syscalls.unmount(str(place))


def test_only_the_sizes_that_were_wanted_last_are_kept_ready(
    pool: DiskImagePool, tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_image_pool, "_SIZES", 2)
    for number in (0, 1, 2, 0):
        pool.take(tmp_path / "image", SMALLEST + number * MB, place)
        pool.refill()
        for path in tmp_path.glob("image"):
            thread_syscalls.unmount(str(place))
            path.unlink()
    assert pool.count == 2 * PER_SIZE
    assert not pool.take(tmp_path / "image", SMALLEST + MB, place), "of another size there is none"


def test_none_is_left_and_none_is_made_after_the_end(
    pool: DiskImagePool, images: DiskImages, tmp_path: Path, place: Path
) -> None:
    pool.take(tmp_path / "image", SMALLEST, place)
    pool.refill()
    assert len(loops(tmp_path)) == PER_SIZE
    pool.close()
    eventually_sync(lambda: loops(tmp_path) == [])
    pool.refill()
    assert (pool.count, loops(tmp_path), list(images.spares.iterdir())) == (0, [], [])


def test_an_agent_that_is_killed_leaves_neither_mounts_nor_devices_nor_after_the_next_start_files(
    tmp_path: Path,
) -> None:
    died = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)])
    assert died.returncode == -signal.SIGKILL
    eventually_sync(lambda: loops(tmp_path) == [])
    assert len(list((tmp_path / "systems" / "templates" / "spares").iterdir())) == PER_SIZE
    images = DiskImages(tmp_path / "systems")
    assert list(images.spares.iterdir()) == []
    images.close()


def test_where_the_ready_one_cannot_be_used_another_is_made(
    images: DiskImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = WritableLayers(None, images, boot_id="boot")
    assert layers._spares is not None
    layer = tmp_path / "layer"
    for name in ("first", "second"):
        opened = layers.open(tmp_path / name, SMALLEST)
        assert opened == OpenLayer(DiskLimitKind.FILE_SYSTEM, is_new=True)
        layers.refill()
    for path in images.spares.iterdir():
        path.unlink()  # so that it cannot be renamed
    assert layers.open(layer, SMALLEST) == OpenLayer(DiskLimitKind.FILE_SYSTEM, is_new=True)
    assert os.path.ismount(layer)
    for name in ("first", "second", "layer"):
        thread_syscalls.unmount(str(tmp_path / name))
    layers.close()


@needs_runc
async def test_a_start_with_a_limit_takes_one_and_the_next_is_made_after_it(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_GIGABYTE", 32 * MB)
    disks = agent.containers._deps.disks
    if disks.kind is not DiskLimitKind.FILE_SYSTEM:
        pytest.skip("the file system has project quotas, which take no time to make")
    spares = disks._spares
    assert spares is not None
    for number in range(3):
        ready = {path.stat().st_ino for path in spares._images.spares.iterdir()}
        assert len(ready) == (PER_SIZE if number else 0)
        await agent.containers.create(
            spec(f"web{number}", "sleep", "60", resources=Resources(disk=Gigabytes(1))), starts=True
        )
        [image] = agent.containers._deps.records.paths(f"web{number}").folder.glob("layer.*.ext4")
        assert (image.stat().st_ino in ready) == bool(number)
        await eventually(lambda: spares.count == PER_SIZE)
