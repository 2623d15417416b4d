"""Every place for snapshots keeps the same contract: whole or absent, verified, continued, removed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from skerry.kit.backoff import Backoff
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.snapshots import ObjectStore
from skerry.node.volumes import image_files
from skerry.node.volumes.manifests import ImageManifest
from skerry.node.volumes.node_snapshots import NodeSnapshots
from skerry.node.volumes.s3_client import S3Client
from skerry.node.volumes.s3_store import S3Store
from skerry.node.volumes.snapshot_store import FolderStore, SnapshotStore
from skerry.node.volumes.work_progress import WorkProgress
from tests.node.volumes.images import made_operation
from tests.support.s3 import BUCKET, S3Server

ID = "01m7gtfpsmxr1dcp2kdcyztdzr"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3") / "data")
    yield server
    server.stop()


def s3_store(store: ObjectStore) -> S3Store:
    quickly = Backoff(first_s=0.01, cap_s=0.02)
    return S3Store(lambda: S3Client(store, SystemClock(), backoff=quickly), part_chunks=2)


@pytest.fixture(params=["node", "folder", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server) -> AsyncIterator[SnapshotStore]:
    match request.param:
        case "node":
            yield NodeSnapshots(tmp_path / "snapshots")
        case "folder":
            (tmp_path / "backups").mkdir()
            yield FolderStore(tmp_path / "backups")
        case _:
            found = s3_store(s3.store)
            yield found
            await found.remove(ID)
            assert s3.objects() == set()


async def read_all(store: SnapshotStore, manifest: ImageManifest) -> str:
    """The digest of the image, by its chunks."""
    reader = await store.open(ID, manifest)
    try:
        found = hashlib.sha256()
        for chunk in range(manifest.count):
            hole = image_files.is_hole(manifest, chunk)
            data = bytes(manifest.length(chunk)) if hole else await reader.read(chunk)
            manifest.check(chunk, data) if not hole else None
            found.update(data)
        return found.hexdigest()
    finally:
        await reader.close()


async def test_what_was_written_is_read_and_removed(store: SnapshotStore, tmp_path: Path) -> None:
    operation, manifest = made_operation(tmp_path / "operation")
    expected = hashlib.sha256(operation.image.read_bytes()).hexdigest()
    with pytest.raises(errors.NotFound):
        await store.manifest(ID)
    progress = WorkProgress()
    await store.write(ID, operation, manifest, progress)
    assert progress.done == progress.total
    assert await store.manifest(ID) == manifest
    assert await read_all(store, manifest) == expected
    await store.write(ID, operation, manifest, WorkProgress())  # nothing is left to do
    await store.remove(ID)
    await store.remove(ID)
    with pytest.raises(errors.NotFound):
        await store.manifest(ID)


@pytest.mark.parametrize("name", ["../x", "", "a/b"])
async def test_an_id_that_is_no_name_is_refused(store: SnapshotStore, name: str) -> None:
    with pytest.raises(errors.Invalid):
        await store.manifest(name)
    with pytest.raises(errors.Invalid):
        await store.remove(name)


async def test_an_interrupted_write_goes_on_and_one_that_does_not_leaves_nothing(
    store: SnapshotStore, tmp_path: Path
) -> None:
    if isinstance(store, NodeSnapshots):
        pytest.skip("it only renames")
    operation, manifest = made_operation(tmp_path / "operation")

    async def stopped_after(parts: int) -> None:
        progress = StoppingProgress(parts)
        with pytest.raises(StoppingProgress.Stopped):
            await store.write(ID, operation, manifest, progress)

    for parts in (1, 2, 3):
        await stopped_after(parts)
        with pytest.raises(errors.NotFound):
            await store.manifest(ID)
    await store.remove(ID)
    # What was removed is not counted on.
    await store.write(ID, operation, manifest, WorkProgress())
    assert await store.manifest(ID) == manifest
    await read_all(store, manifest)
    await store.remove(ID)


class StoppingProgress(WorkProgress):
    """Fails after so many parts, as a killed agent would."""

    class Stopped(Exception):
        pass

    def __init__(self, parts: int) -> None:
        super().__init__()
        self._parts = parts

    def advance(self, count: int) -> None:
        super().advance(count)
        self._parts -= 1
        if self._parts == 0:
            raise self.Stopped


async def test_a_folder_that_is_not_mounted_is_said(tmp_path: Path) -> None:
    operation, manifest = made_operation(tmp_path / "operation")
    with pytest.raises(errors.FailedPrecondition, match="does not exist"):
        await FolderStore(tmp_path / "nowhere").write(ID, operation, manifest, WorkProgress())


async def test_data_that_a_disk_damaged_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    store = FolderStore(tmp_path / "backups")
    operation, manifest = made_operation(tmp_path / "operation")
    with pytest.raises(StoppingProgress.Stopped):
        await store.write(ID, operation, manifest, StoppingProgress(len(list(manifest.data_chunks())) + 1))
    data = tmp_path / "backups" / f"{ID}.part" / "data"
    damaged = bytearray(data.read_bytes())
    damaged[5000] ^= 1
    data.write_bytes(damaged)
    with pytest.raises(errors.Unavailable, match="digest"):
        await store.write(ID, operation, manifest, WorkProgress())
    await store.write(ID, operation, manifest, WorkProgress())
    await read_all(store, manifest)


class TestS3:
    async def test_an_upload_goes_on_with_the_parts_that_are_missing(
        self, s3: S3Server, tmp_path: Path
    ) -> None:
        operation, manifest = made_operation(tmp_path / "operation")
        store = s3_store(s3.store)
        with pytest.raises(StoppingProgress.Stopped):
            await store.write(ID, operation, manifest, StoppingProgress(1))
        upload = operation.upload_id()
        assert upload
        await store.write(ID, operation, manifest, WorkProgress())
        assert operation.upload_id() == upload
        await read_all(store, manifest)
        await store.remove(ID)

    async def test_objects_are_below_the_prefix(self, s3: S3Server, tmp_path: Path) -> None:
        operation, manifest = made_operation(tmp_path / "operation")
        place = s3.store
        store = s3_store(
            ObjectStore(
                place.endpoint, place.bucket, place.region, place.access_key, place.secret_key, "cloud/one"
            )
        )
        await store.write(ID, operation, manifest, WorkProgress())
        assert s3.objects() == {f"cloud/one/{ID}/data", f"cloud/one/{ID}/manifest"}
        await store.remove(ID)
        assert s3.objects() == set()

    async def test_wrong_credentials_are_said_without_them(self, s3: S3Server) -> None:
        place = s3.store
        wrong = ObjectStore(place.endpoint, BUCKET, place.region, place.access_key, "not-the-secret")
        with pytest.raises(errors.FailedPrecondition, match="refuses the configured credentials") as caught:
            await s3_store(wrong).manifest(ID)
        text = f"{caught.value.message} {caught.value.detail!r}"
        assert "not-the-secret" not in text

    async def test_a_store_that_is_away_is_tried_again(self, tmp_path: Path) -> None:
        server = S3Server(tmp_path / "data")
        server.stop()
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                await asyncio.to_thread(server.start)

        async with S3Client(server.store, SystemClock(), sleep=sleep) as client:
            assert await client.size("nothing") is None
        assert len(waits) >= 2
        server.stop()

    async def test_a_store_that_stays_away_is_an_error_that_says_so(self, tmp_path: Path) -> None:
        server = S3Server(tmp_path / "data")
        server.stop()

        async def sleep(seconds: float) -> None: ...

        async with S3Client(server.store, SystemClock(), sleep=sleep) as client:
            with pytest.raises(errors.Unavailable, match="cannot be reached"):
                await client.get("x")
