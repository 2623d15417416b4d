"""Volumes on a node: the size that was asked for and no more, data that stay, and nothing that is left."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, VolumeId
from skerry.model.resources import Gigabytes
from skerry.model.volumes import VolumeOrder
from skerry.node.volumes.store import VolumeStore
from tests.node.containers.real import stuck_loops

pytestmark = pytest.mark.root

MB = 1024**2
ID = VolumeId("01v")
ORDER = VolumeOrder(ID, "db", DEFAULT_NAMESPACE, Gigabytes(1), 1)


class Killed(BaseException):
    """As `kill -9` would, at a step."""


def store(folder: Path, dies_at: str = "", size: int = 32 * MB) -> VolumeStore:
    """Opened in `folder`; a gigabyte has `size` bytes there."""

    def failpoint(step: str) -> None:
        if step == dies_at:
            raise Killed

    found = VolumeStore(folder, now=lambda: 5.0, bytes_per_gb=size, failpoint=failpoint)
    found.open()
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "volumes"
    assert stuck_loops(tmp_path) == []
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(tmp_path) not in mounts


@pytest.fixture
def volumes(folder: Path) -> VolumeStore:
    return store(folder)


def write(mounted: int, name: str, data: bytes = b"x") -> None:
    Path(f"/proc/self/fd/{mounted}/{name}").write_bytes(data)


def fill(mounted: int) -> None:
    """With empty files, of which there can be so many."""
    for number in range(10_000):
        write(mounted, f"file-{number}", b"")


def read(mounted: int, name: str) -> bytes:
    return Path(f"/proc/self/fd/{mounted}/{name}").read_bytes()


def test_a_volume_can_be_had_on_this_machine(volumes: VolumeStore) -> None:
    assert volumes.probe_failure() == ""
    assert volumes.ids() == []


def test_data_are_there_at_the_next_mount_and_for_the_next_agent(volumes: VolumeStore, folder: Path) -> None:
    volumes.apply(ORDER)
    with volumes.mounted(ID) as mounted:
        assert os.listdir(f"/proc/self/fd/{mounted}") == []
        write(mounted, "row", b"1")
    with store(folder).mounted(ID) as mounted:
        assert read(mounted, "row") == b"1"


def test_no_more_than_its_size_can_be_written_not_even_reserved_or_as_empty_files(
    volumes: VolumeStore, folder: Path
) -> None:
    volumes.apply(ORDER)
    with volumes.mounted(ID) as mounted:
        file = os.open(f"/proc/self/fd/{mounted}/big", os.O_CREAT | os.O_WRONLY)
        try:
            with pytest.raises(OSError) as refused:
                os.posix_fallocate(file, 0, 33 * MB)
        finally:
            os.close(file)
        os.unlink(f"/proc/self/fd/{mounted}/big")
        assert refused.value.errno == errno.ENOSPC
        with pytest.raises(OSError) as full:
            fill(mounted)
        assert full.value.errno == errno.ENOSPC
        usage = volumes.usage(ID)
        assert 0 < usage.used_bytes < usage.capacity_bytes <= 32 * MB
    assert os.stat(folder / ID / "image").st_size == 32 * MB


def test_the_blocks_are_reserved_so_that_a_full_disk_of_the_node_cannot_stop_its_writer(
    volumes: VolumeStore,
) -> None:
    volumes.apply(ORDER)
    assert volumes.disk_bytes() >= 32 * MB


def test_a_disk_without_room_refuses_the_volume_and_says_so(folder: Path) -> None:
    volumes = store(folder, size=2**50)
    with pytest.raises((errors.ResourcesExhausted, errors.Unavailable)):
        volumes.apply(ORDER)
    assert volumes.ids() == []
    assert os.listdir(folder) == []


def test_the_reserve_of_the_disk_is_not_touched_not_even_for_a_moment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes what there is before it refuses, and everybody else finds a full disk meanwhile."""
    volumes = store(folder)
    monkeypatch.setattr("skerry.kit.files.spare_bytes", lambda folder: 32 * MB - 1)
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: pytest.fail("it was tried"))
    with pytest.raises(errors.ResourcesExhausted):
        volumes.apply(ORDER)
    assert os.listdir(folder) == []


def test_a_volume_is_mounted_for_several_at_once_read_only_for_some(volumes: VolumeStore) -> None:
    volumes.apply(ORDER)
    writer = volumes.mount(ID)
    reader = volumes.mount(ID, read_only=True)
    try:
        write(writer, "row", b"2")
        assert read(reader, "row") == b"2"
        with pytest.raises(OSError, match="Read-only"):
            write(reader, "other")
        assert volumes.is_used(ID)
        with pytest.raises(errors.Unavailable, match="still used by another container"):
            volumes.mount(ID, exclusive=True)
    finally:
        os.close(writer)
        os.close(reader)
    os.close(volumes.mount(ID, exclusive=True))


def test_usage_is_the_same_whether_or_not_it_is_mounted(volumes: VolumeStore) -> None:
    volumes.apply(ORDER)
    with volumes.mounted(ID) as mounted:
        write(mounted, "rows", b"x" * MB)
        os.sync()
        during = volumes.usage(ID)
    assert volumes.usage(ID) == during
    assert during.used_bytes > MB


def test_only_an_order_deletes_it_and_not_while_it_is_mounted(volumes: VolumeStore, folder: Path) -> None:
    volumes.apply(ORDER)
    deletion = replace(ORDER, is_deleted=True, generation=2)
    with (
        volumes.mounted(ID),
        pytest.raises(errors.FailedPrecondition, match="mounted by a container"),
    ):
        volumes.apply(deletion)
    assert store(folder).ids() == [ID]
    volumes.apply(deletion)
    volumes.apply(deletion)
    assert os.listdir(folder) == []


def test_an_older_order_is_refused(volumes: VolumeStore) -> None:
    volumes.apply(replace(ORDER, generation=3))
    with pytest.raises(errors.Conflict):
        volumes.apply(replace(ORDER, generation=2, is_deleted=True))
    assert volumes.ids() == [ID]


def test_one_that_was_there_is_never_created_again_empty(volumes: VolumeStore) -> None:
    with pytest.raises(errors.FailedPrecondition, match="not on this node any more"):
        volumes.apply(replace(ORDER, may_create=False))
    assert volumes.ids() == []


def test_one_whose_file_is_gone_is_lost_until_a_snapshot_is_restored(
    volumes: VolumeStore, folder: Path
) -> None:
    volumes.apply(ORDER)
    assert volumes.loss(ID) == ""
    os.rename(folder / ID / "image", folder / ID / "kept")
    assert "put it back" in volumes.loss(ID)
    with pytest.raises(errors.Unavailable, match="is gone"):
        volumes.mount(ID)
    os.link(folder / ID / "kept", folder / "copy")
    volumes.install(replace(ORDER, generation=2), folder / "copy")
    assert volumes.loss(ID) == ""
    with volumes.mounted(ID):
        pass
    assert volumes.loss(VolumeId("01another")) == ""


def test_a_folder_without_a_readable_record_is_left_as_it_is(volumes: VolumeStore, folder: Path) -> None:
    volumes.apply(ORDER)
    (folder / ID / "record.json").write_text("nonsense")
    again = store(folder)
    assert again.ids() == []
    with pytest.raises(errors.FailedPrecondition, match="cannot be read"):
        again.apply(ORDER)
    assert (folder / ID / "image").exists()


@pytest.mark.parametrize("step", ["create.drafted", "create.made", "create.published"])
def test_an_agent_that_dies_while_it_creates_one_leaves_all_of_it_or_nothing(
    folder: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = store(folder, step)
    # What a process does that is not killed: it tidies up.
    monkeypatch.setattr(dying._records, "discard", lambda draft: None)
    with pytest.raises(Killed):
        dying.apply(ORDER)
    again = store(folder)
    assert again.ids() == ([ID] if step == "create.published" else [])
    assert [path for path in os.listdir(folder) if path.startswith(".")] == []
    again.apply(ORDER)
    with again.mounted(ID) as mounted:
        assert os.listdir(f"/proc/self/fd/{mounted}") == []


@pytest.mark.parametrize("step", ["delete.unused", "delete.removed"])
def test_an_agent_that_dies_while_it_deletes_one_leaves_all_of_it_or_nothing(folder: Path, step: str) -> None:
    store(folder).apply(ORDER)
    deletion = replace(ORDER, is_deleted=True, generation=2)
    with pytest.raises(Killed):
        store(folder, step).apply(deletion)
    again = store(folder)
    again.apply(deletion)
    assert again.ids() == []
    assert os.listdir(folder) == []
