"""Backups in a bucket: in parts, read back, and nothing left of one that fails. Backups in a folder: one that
hangs holds up nobody, and drafts of a server that was killed are removed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path, PosixPath

import pytest

from skerry.control.backup import archive, names, targets
from skerry.control.backup.archive import BackupHeader, BackupManifest
from skerry.control.backup.targets import BucketTarget, FolderTarget
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.snapshots import ObjectStore
from skerry.node.volumes.s3_client import S3Client
from skerry.node.volumes.s3_uploads import S3Bucket
from tests.support.backups import CLOUD
from tests.support.s3 import BUCKET, S3Server
from tests.support.waiting import PATIENCE_S, eventually

SIZE = 500_000
NAME = f"skerry-{CLOUD}-20261118T000000Z-7.backup"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3") / "data")
    yield server
    server.stop()


@asynccontextmanager
async def connect(store: ObjectStore) -> AsyncIterator[S3Bucket]:
    async with S3Client(store, SystemClock()) as client:
        yield S3Bucket(client)


async def parts_of(*, is_cut: bool = False) -> AsyncIterator[bytes]:
    """An archive with more than one part of an upload."""
    header = BackupHeader(archive.FORMAT, "0.1.0", "f" * 64, "us", 1.0, 7, "sqlite")
    data = os.urandom(SIZE)
    part = archive.PartSource("files/functions/calls.db", len(data), lambda: [data])
    whole = b"".join(archive.write(header, [part], lambda parts: BackupManifest(parts, {})))
    for at in range(0, len(whole), 100_000):
        yield whole[at : at + 100_000] if not is_cut else whole[at : at + 100_000][:-100]


def count(into: list[int]) -> targets.Progress:
    return into.append


async def test_a_backup_in_a_bucket_is_read_back_listed_and_deleted(s3: S3Server) -> None:
    target = BucketTarget(s3.store, "clouds/one/", connect, part_bytes=200_000)
    name, written, read = NAME, list[int](), list[int]()
    done = await target.write(name, parts_of(), None, written=count(written), read=count(read))
    assert done.bytes == sum(written)
    assert len(written) == 3
    assert sum(read) == SIZE
    assert f"clouds/one/{name}" in s3.objects()
    assert [one.name for one in await target.list(CLOUD)] == [name]
    assert not await target.list("ba9876543210"), "it is of another cloud"
    with pytest.raises(errors.AlreadyExists):
        await target.write(name, parts_of(), None, written=count([]), read=count([]))
    await target.delete(name)
    assert not await target.list(CLOUD)


async def test_nothing_is_left_of_one_that_cannot_be_read_back(s3: S3Server) -> None:
    before = s3.objects()
    target = BucketTarget(s3.store, "", connect)
    with pytest.raises(errors.Invalid, match="backup"):
        await target.write("cut.backup", parts_of(is_cut=True), None, written=count([]), read=count([]))
    assert s3.objects() == before


async def test_drafts_of_this_cloud_that_a_killed_server_left_are_removed(tmp_path: Path) -> None:
    left = names.draft_of(f"skerry-{CLOUD}-20261117T000000Z-3.backup", "0123abcd")
    others = [
        names.draft_of("skerry-ba9876543210-20261117T000000Z-3.backup", "0123abcd"),
        names.draft_of("mine.backup", "0123abcd"),
        f".skerry-{CLOUD}.part",
    ]
    for name in (left, *others):
        (tmp_path / name).write_bytes(b"half of one")
    await FolderTarget(tmp_path).write(NAME, parts_of(), None, written=count([]), read=count([]))
    assert {path.name for path in tmp_path.iterdir()} == {NAME, *others}


async def test_the_draft_of_one_that_fails_is_removed(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match="backup"):
        await FolderTarget(tmp_path).write(
            NAME, parts_of(is_cut=True), None, written=count([]), read=count([])
        )
    assert not list(tmp_path.iterdir())


class HangingPath(PosixPath):
    """A path of a network mount: whoever uses it on the event loop would block everybody."""

    def __fspath__(self) -> str:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise AssertionError(f"{self} is used on the event loop")
        return super().__fspath__()


async def test_a_folder_is_used_in_threads_alone_as_a_network_mount_may_hang(tmp_path: Path) -> None:
    target = FolderTarget(HangingPath(tmp_path))
    await target.write(NAME, parts_of(), None, written=count([]), read=count([]))
    assert [one.name for one in await target.list(CLOUD)] == [NAME]
    await target.delete(NAME)
    missing = FolderTarget(HangingPath(tmp_path / "missing"))
    with pytest.raises(errors.FailedPrecondition, match="create it"):
        await missing.write(NAME, parts_of(), None, written=count([]), read=count([]))


class StuckPath(PosixPath):
    """A path of a network mount whose server is gone until `answers` is set."""

    answers = threading.Event()
    asked = threading.Event()

    def __fspath__(self) -> str:
        self.asked.set()
        self.answers.wait()
        return super().__fspath__()


async def test_a_backup_to_a_folder_that_hangs_can_be_cancelled_and_leaves_nothing(tmp_path: Path) -> None:
    target = FolderTarget(StuckPath(tmp_path))
    writing = asyncio.create_task(target.write(NAME, parts_of(), None, written=count([]), read=count([])))
    try:
        await asyncio.to_thread(StuckPath.asked.wait)
        writing.cancel()
        done, _ = await asyncio.wait([writing], timeout=PATIENCE_S)
        assert done, "it waits for the folder"
    finally:
        StuckPath.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await eventually(lambda: not any(one.name.startswith("backup-folder") for one in threading.enumerate()))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "url", ["s3:/b/k", "s3://B/k", "s3://bucket/a//b", "s3://bucket/../x", "s3://bucket/a b"]
)
def test_what_is_no_object_is_refused(url: str) -> None:
    with pytest.raises(errors.Invalid):
        targets.parse_s3(url)


def test_a_target_is_a_folder_or_a_bucket(s3: S3Server, tmp_path: Path) -> None:
    def of(text: str) -> str:
        return targets.target_of(text, lambda: s3.store, connect).describe("x")

    assert of(str(tmp_path)) == f"{tmp_path}/x"
    assert of(f"s3://{BUCKET}/a/b") == of(f"s3://{BUCKET}/a/b/") == f"s3://{BUCKET}/a/b/x"
    with pytest.raises(errors.Invalid, match="absolute"):
        of("backups")
