"""Where a server writes backups: a folder, or a bucket with the API of S3.

A backup counts once it was written and read back. In a folder it gets its name then; an object that cannot be
read back is deleted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, ParamSpec, Protocol, TypeVar

import structlog
from msgspec.structs import replace

from skerry.control.backup import names, restore
from skerry.control.backup.backup_file import BackupFile
from skerry.control.backup.restore import Progress, VerifiedBackup
from skerry.kit import tasks
from skerry.kit.sealed_stream import Unlock
from skerry.model import errors
from skerry.model.snapshots import ObjectStore

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)

S3_SCHEME: Final = "s3://"
_PART: Final = 16 * 1024**2
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KEY: Final = re.compile(r"[A-Za-z0-9._/-]{1,500}")


class StoredBackup(NamedTuple):
    """A backup that is there."""

    name: str
    bytes: int


class WrittenBackup(NamedTuple):
    """A backup that was written and read back."""

    bytes: int
    verified: VerifiedBackup


class ObjectBucket(Protocol):
    """A bucket with the API of S3."""

    async def begin_upload(self, key: str) -> str: ...

    async def upload_part(self, key: str, upload: str, body: bytes) -> None: ...

    async def complete_upload(self, key: str, upload: str) -> None: ...

    async def abort_upload(self, key: str, upload: str) -> None: ...

    async def size(self, key: str) -> int | None: ...

    async def get(self, key: str, first: int, length: int) -> bytes: ...

    async def delete(self, key: str) -> None: ...

    async def list_objects(self, prefix: str) -> Sequence[tuple[str, int]]: ...


OpenBucket = Callable[[ObjectStore], AbstractAsyncContextManager[ObjectBucket]]


class BackupTarget(Protocol):
    """A place for backups."""

    def describe(self, name: str) -> str:
        """The whole name of a backup, for people."""
        ...

    async def write(
        self,
        name: str,
        parts: AsyncIterator[bytes],
        unlock: Unlock | None,
        *,
        written: Progress,
        read: Progress,
    ) -> WrittenBackup:
        """Write a backup and read it back; nothing is left of one that fails."""
        ...

    async def list(self, cloud: str) -> Sequence[StoredBackup]:
        """Those that the schedule of this cloud has written, the oldest first."""
        ...

    async def delete(self, name: str) -> None: ...


class FolderTarget:
    """A folder of this machine. It may be a network file system that hangs: all of it is done in a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self, name: str) -> str:
        return str(self._folder / name)

    async def write(
        self,
        name: str,
        parts: AsyncIterator[bytes],
        unlock: Unlock | None,
        *,
        written: Progress,
        read: Progress,
    ) -> WrittenBackup:
        def finish() -> WrittenBackup:
            verified = file.verify(unlock, read)
            file.commit()
            return WrittenBackup(file.size, verified)

        file, thread = BackupFile(self._folder / name), _FolderThread()
        try:
            await thread.call(self._begin, file, name)
            async for part in parts:
                await thread.call(file.write, part)
                written(len(part))
            done = await thread.call(finish)
        except BaseException as error:
            closing = thread.end(file.close)
            if not isinstance(error, asyncio.CancelledError):
                await closing
            raise
        await thread.end(file.close)
        return done

    def _begin(self, file: BackupFile, name: str) -> None:
        if not self._folder.is_dir():
            raise errors.FailedPrecondition(f"{self._folder} is no folder of this server; create it")
        cloud = names.cloud_in(name)
        if cloud is not None:
            # Of a server that was killed: the leader is the only one that writes backups of these names.
            for path in self._folder.glob(names.draft_of("*", "*")):
                if names.cloud_in(names.drafted(path.name)) == cloud:
                    path.unlink(missing_ok=True)
                    log.info("backup.draft_removed", path=str(path))
        file.open()

    async def list(self, cloud: str) -> Sequence[StoredBackup]:
        def find() -> Sequence[StoredBackup]:
            return sorted(
                StoredBackup(one.name, one.stat().st_size)
                for one in self._folder.glob("skerry-*.backup")
                if names.cloud_in(one.name) == cloud
            )

        return await _FolderThread().end(find)

    async def delete(self, name: str) -> None:
        path = self._folder / _checked(name)
        await _FolderThread().end(lambda: path.unlink(missing_ok=True))


class _FolderThread:
    """A thread for a folder that may hang. Who waits for it can be cancelled, such as a leader that is
    replaced; what was begun goes on, in order. It takes no thread of the event loop's own."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "backup-folder")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(function, *args, **kwargs))

    def end(self, last: Callable[[], T]) -> asyncio.Future[T]:
        """Call `last` behind everything else; it is called also if nobody waits for it."""
        result = asyncio.shield(asyncio.get_running_loop().run_in_executor(self._executor, last))
        self._executor.shutdown(wait=False)
        return result


class BucketTarget:
    """Objects of a bucket whose keys begin with `prefix`."""

    def __init__(
        self, store: ObjectStore, prefix: str, connect: OpenBucket, *, part_bytes: int = _PART
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._connect = connect
        self._part_bytes = part_bytes

    def describe(self, name: str) -> str:
        return f"{S3_SCHEME}{self._store.bucket}/{self._prefix}{name}"

    async def write(
        self,
        name: str,
        parts: AsyncIterator[bytes],
        unlock: Unlock | None,
        *,
        written: Progress,
        read: Progress,
    ) -> WrittenBackup:
        key = self._prefix + name
        async with self._connect(self._store) as bucket:
            if await bucket.size(key) is not None:
                raise errors.AlreadyExists(f"{self.describe(name)} exists; choose another name")
            await self._upload(bucket, key, parts, written)
            try:
                size = await bucket.size(key)
                if size is None:
                    raise errors.Unavailable(f"{self.describe(name)} is not there after it was sent")
                reader = BucketReader(bucket, key, size)
                return WrittenBackup(size, await tasks.in_thread(restore.verify, reader, unlock, read))
            except BaseException:
                with suppress(errors.SkerryError):
                    await tasks.run_to_completion(bucket.delete(key))
                raise

    async def _upload(
        self, bucket: ObjectBucket, key: str, parts: AsyncIterator[bytes], written: Progress
    ) -> None:
        upload = await bucket.begin_upload(key)
        try:
            pending = bytearray()
            async for part in parts:
                pending += part
                if len(pending) >= self._part_bytes:
                    await bucket.upload_part(key, upload, bytes(pending))
                    written(len(pending))
                    pending.clear()
            if pending:
                await bucket.upload_part(key, upload, bytes(pending))
                written(len(pending))
            await bucket.complete_upload(key, upload)
        except BaseException:
            with suppress(errors.SkerryError):  # the first failure is the one to report
                await tasks.run_to_completion(bucket.abort_upload(key, upload))
            raise

    async def list(self, cloud: str) -> Sequence[StoredBackup]:
        async with self._connect(self._store) as bucket:
            found = [
                (key.removeprefix(self._prefix), size)
                for key, size in await bucket.list_objects(self._prefix)
            ]
        return sorted(StoredBackup(name, size) for name, size in found if names.cloud_in(name) == cloud)

    async def delete(self, name: str) -> None:
        async with self._connect(self._store) as bucket:
            await bucket.delete(self._prefix + _checked(name))


class BucketReader:
    """An object, read in a thread while the loop that made this runs."""

    def __init__(self, bucket: ObjectBucket, key: str, size: int) -> None:
        self._bucket = bucket
        self._key = key
        self._size = size
        self._at = 0
        self._loop = asyncio.get_running_loop()
        self._ahead = b""

    def read(self, size: int) -> bytes:
        if not self._ahead and self._at < self._size:
            length = min(_PART, self._size - self._at)
            getting = self._bucket.get(self._key, self._at, length)
            self._ahead = asyncio.run_coroutine_threadsafe(getting, self._loop).result()
            self._at += len(self._ahead)
            if not self._ahead:
                return b""
        part, self._ahead = self._ahead[:size], self._ahead[size:]
        return part


def parse_s3(url: str) -> tuple[str, str]:
    """Bucket and key of `s3://BUCKET/KEY`. Raises `Invalid`."""
    bucket, _, key = url.removeprefix(S3_SCHEME).partition("/")
    is_plain = not any(part in ("", ".", "..") for part in key.rstrip("/").split("/")) if key else True
    if not url.startswith(S3_SCHEME) or not _BUCKET.fullmatch(bucket) or not is_plain:
        raise errors.Invalid(f"{url[:200]!r} is not s3://BUCKET/KEY", field="url")
    if key and not _KEY.fullmatch(key):
        raise errors.Invalid(f"a key has letters, digits and ._/- only: {key[:200]!r}", field="url")
    return bucket, key


def target_of(text: str, store: Callable[[], ObjectStore], connect: OpenBucket) -> BackupTarget:
    """The setting `backup.target`. Raises `Invalid` or `FailedPrecondition`."""
    if text.startswith(S3_SCHEME):
        bucket, prefix = parse_s3(text)
        return BucketTarget(
            replace(store(), bucket=bucket, prefix=""), f"{prefix.rstrip('/')}/" if prefix else "", connect
        )
    if not Path(text).is_absolute():
        raise errors.Invalid(
            f"{text!r} is neither an absolute folder nor s3://BUCKET/PREFIX", field="backup.target"
        )
    return FolderTarget(Path(text))


def _checked(name: str) -> str:
    assert names.cloud_in(name) is not None, "a name of the schedule; nothing else is ever deleted"
    return name
