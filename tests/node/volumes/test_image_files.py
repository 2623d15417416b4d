"""Images as files: copies have every byte and every hole, and a damaged one is found out."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skerry.model import errors
from skerry.node.volumes import image_files
from skerry.node.volumes.manifests import CHUNK_BYTES
from skerry.node.volumes.operation_folders import OperationFolder, OperationFolders, ReceivedChunks
from skerry.node.volumes.work_progress import WorkProgress, WorkStopped
from tests.node.volumes.images import CHUNKS, WRITTEN, blocks, made_operation, make_image, same


def test_a_copy_has_every_byte_and_keeps_the_holes(tmp_path: Path) -> None:
    source = make_image(tmp_path / "source")
    progress = WorkProgress()
    image_files.copy(source, tmp_path / "copy", progress)
    assert same(source, tmp_path / "copy")
    assert blocks(tmp_path / "copy") <= blocks(source) + 65536
    assert progress.done == progress.total == os.stat(source).st_size
    assert os.stat(tmp_path / "copy").st_mode & 0o077 == 0


def test_blocks_that_were_reserved_and_never_written_are_not_copied(tmp_path: Path) -> None:
    source = make_image(tmp_path / "source")
    with open(source, "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, os.stat(source).st_size)
        os.fsync(file.fileno())
    assert blocks(source) >= os.stat(source).st_size
    assert image_files.written_bytes(source) < CHUNK_BYTES
    image_files.copy(source, tmp_path / "copy", WorkProgress())
    assert blocks(tmp_path / "copy") < CHUNK_BYTES
    assert same(source, tmp_path / "copy")


def test_the_manifest_knows_data_and_holes(tmp_path: Path) -> None:
    source = make_image(tmp_path / "source")
    manifest = image_files.scan(source, 5.0, WorkProgress())
    assert manifest.count == CHUNKS
    assert tuple(manifest.data_chunks()) == WRITTEN
    assert manifest.image_bytes == os.stat(source).st_size
    assert manifest.taken_at == 5.0


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, CHUNKS * CHUNK_BYTES - 4097), data=st.data())
def test_one_changed_byte_anywhere_is_found(tmp_path: Path, at: int, data: st.DataObject) -> None:
    source = tmp_path / "source"
    source.unlink(missing_ok=True)
    make_image(source)
    manifest = image_files.scan(source, 5.0, WorkProgress())
    with open(source, "r+b") as file:
        file.seek(at)
        (before,) = file.read(1)
        file.seek(at)
        file.write(bytes([data.draw(st.integers(0, 255).filter(lambda value: value != before))]))
    with pytest.raises(errors.Unavailable, match="digest"):
        image_files.verify(source, manifest, WorkProgress())


def test_an_image_is_written_from_chunks_in_any_number_of_goes(tmp_path: Path) -> None:
    source = make_image(tmp_path / "source")
    manifest = image_files.scan(source, 5.0, WorkProgress())
    reader = image_files.ImageReader(source, manifest)
    for chunk in manifest.data_chunks():
        writer = image_files.ImageWriter(tmp_path / "target", manifest, is_reserved=True)
        writer.write(chunk, reader.read(chunk))
        writer.sync()
        writer.close()
    reader.close()
    assert same(source, tmp_path / "target")
    assert blocks(tmp_path / "target") >= manifest.image_bytes  # a full disk cannot fail a later write
    image_files.verify(tmp_path / "target", manifest, WorkProgress())


def test_the_reserve_of_the_disk_is_not_touched_by_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_image(tmp_path / "source")
    manifest = image_files.scan(source, 5.0, WorkProgress())
    monkeypatch.setattr("skerry.kit.files.spare_bytes", lambda folder: manifest.image_bytes - 1)
    with pytest.raises(OSError) as full:
        image_files.ImageWriter(tmp_path / "target", manifest, is_reserved=True)
    assert full.value.errno == errno.ENOSPC
    assert blocks(tmp_path / "target") == 0
    monkeypatch.setattr("skerry.kit.files.spare_bytes", lambda folder: manifest.image_bytes)
    image_files.ImageWriter(tmp_path / "target", manifest, is_reserved=True).close()
    monkeypatch.setattr("skerry.kit.files.spare_bytes", lambda folder: 0)
    image_files.ImageWriter(tmp_path / "target", manifest, is_reserved=True).close()  # it has its blocks


def test_a_wrong_chunk_is_not_written(tmp_path: Path) -> None:
    source = make_image(tmp_path / "source")
    manifest = image_files.scan(source, 5.0, WorkProgress())
    writer = image_files.ImageWriter(tmp_path / "target", manifest, is_reserved=False)
    with pytest.raises(errors.Unavailable):
        writer.write(2, bytes(CHUNK_BYTES))
    writer.close()
    assert not any((tmp_path / "target").read_bytes())


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    make_image(tmp_path / "source")
    (tmp_path / "link").symlink_to(tmp_path / "source")
    with pytest.raises(OSError):
        image_files.copy(tmp_path / "link", tmp_path / "copy", WorkProgress())
    with pytest.raises(OSError):
        image_files.copy(tmp_path / "source", tmp_path / "link", WorkProgress())


async def test_work_in_a_thread_ends_soon_after_a_cancel_and_not_before_the_thread() -> None:
    progress, began, ended = WorkProgress(), threading.Event(), threading.Event()

    def work() -> None:
        try:
            while True:
                began.set()
                progress.advance(1)
        except WorkStopped:
            ended.set()
            raise

    task = asyncio.create_task(progress.run(work))
    await asyncio.to_thread(began.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


class TestOperationFolders:
    def test_what_has_its_name_is_whole(self, tmp_path: Path) -> None:
        operation, manifest = made_operation(tmp_path / "operation")
        assert operation.manifest() == manifest
        assert operation.image.exists()
        assert not operation.part.exists()

    def test_remember_how_much_is_on_disk(self, tmp_path: Path) -> None:
        operation = OperationFolder(tmp_path / "operation")
        operation.make()
        assert operation.received() is None
        operation.save_received(ReceivedChunks("sha256:1", 7))
        assert operation.received() == ReceivedChunks("sha256:1", 7)
        operation.part.touch()
        operation.restart()
        assert operation.received() is None
        assert not operation.part.exists()

    def test_remember_that_a_volume_may_be_frozen_until_it_is_not(self, tmp_path: Path) -> None:
        operation = OperationFolder(tmp_path / "operation")
        operation.make()
        with operation.freezing("volume-1"):
            assert operation.frozen_volume() == "volume-1"
        assert operation.frozen_volume() == ""
        with pytest.raises(KeyError), operation.freezing("volume-1"):
            raise KeyError
        # Whoever froze it did not say that it thawed.
        assert operation.frozen_volume() == "volume-1"

    def test_are_removed_after_a_week_that_nobody_continued_them(self, tmp_path: Path) -> None:
        folders = OperationFolders(tmp_path / "operations")
        made_operation(folders.of("old").path)
        made_operation(folders.of("new").path)
        long_ago = folders.of("old").image.stat().st_mtime - 8 * 86_400
        for path in (folders.of("old").path, *folders.of("old").path.iterdir()):
            os.utime(path, (long_ago, long_ago))
        folders.remove_abandoned()
        assert [each.path.name for each in folders.all()] == ["new"]
        folders.of("new").discard()
        folders.of("new").discard()
        assert folders.all() == []

    @pytest.mark.parametrize("name", ["", "..", "a/b", "a\0b", "." * 3])
    def test_have_names_that_stay_in_their_folder(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(errors.Invalid):
            OperationFolders(tmp_path / "operations").of(name)
