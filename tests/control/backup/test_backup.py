"""A backup is what was in the store and the folder at one moment; a damaged one is refused, and an
interrupted restore begins anew."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import stat
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skerry.control.backup import archive, record_import, restore
from skerry.control.backup.archive import BackupHeader, BackupManifest, FileSeal
from skerry.control.backup.sources import BackupSource
from skerry.control.recovery import store_history
from skerry.control.recovery.store_history import ServerRun
from skerry.kit import json_codec, sealed_stream
from skerry.kit.clock import SystemClock
from skerry.model import errors, versions
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName
from skerry.store import data_stamp
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Entry, Put
from skerry.store.sqlite.call_rows import CallRows
from skerry.store.sqlite.store import SqliteStore
from tests.support.backups import HeldCode
from tests.support.disks import small_disk

CODE = b"the code of a function"
DIGEST = Digest("sha256:" + hashlib.sha256(CODE).hexdigest())
ELSEWHERE = Digest("sha256:" + "0" * 64)


def function(name: str, code: Digest) -> Put:
    made = Function(FunctionName(name), "python3", 128, 1.0, handler="f.f", code=code)
    return Put(f"function/{name}", json_codec.encode(made))


def data_folder(folder: Path) -> Path:
    (folder / "pki").mkdir(parents=True)
    (folder / "functions/code/archives").mkdir(parents=True)
    (folder / "node.id").write_text("01kb3k2v8x1w0d5q0m8s6n4r2t\n")
    (folder / "pki/ca.key").write_bytes(b"key")
    (folder / "pki/ca.crt").write_bytes(b"certificate")
    (folder / "pki/.lock").write_bytes(b"")
    (folder / "functions/code/archives" / DIGEST.removeprefix("sha256:")).write_bytes(CODE)
    calls = CallRows(folder / "functions/calls.db", 1 << 20)
    calls.write([lambda rows: rows.accept("waits-1", "line", 1.0, b"request")])
    calls.close()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data_folder(tmp_path_factory.mktemp("backup") / "data")


@pytest.fixture(scope="module")
def taken(folder: Path) -> bytes:
    return asyncio.run(take(folder))


async def take(folder: Path, seal: FileSeal | None = None) -> bytes:
    """A backup of a store with some records."""
    store, code = await SqliteStore.open(folder / "store.db", SystemClock()), HeldCode(DIGEST)
    try:
        run = json_codec.encode(ServerRun("server"))
        await store.commit(
            [Put(f"{store_history.PREFIX}run", run), Put(store_history.RESTORED_BY, b"earlier")]
        )
        lease = await store.grant_lease(60)
        await store.commit([Put("leader", b"us", lease), function("f", DIGEST), function("gone", ELSEWHERE)])
        for number in range(10):  # more than fits into one part
            await store.commit([Put(f"blob/{number:02}", os.urandom(600_000))])
        source = BackupSource(
            store, SystemClock(), folder, code, server="us", kind="sqlite", cloud=lambda: "f" * 64
        )
        async with source.open() as content:
            assert sorted(code.holds) == sorted([DIGEST, ELSEWHERE])
            await store.commit([Put("later", b"is not in it")])
            data = await asyncio.to_thread(lambda: b"".join(content.write(seal)))
        assert not code.holds
        return data
    finally:
        await store.close()


async def records_of(folder: Path) -> tuple[dict[str, Entry], int]:
    store = await SqliteStore.open(folder / "store.db", SystemClock())
    try:
        page = await store.range("")
        return {entry.key: entry for entry in page.entries}, page.revision
    finally:
        await store.close()


def test_a_backup_restores_the_records_with_their_revisions_and_the_files(
    tmp_path: Path, folder: Path, taken: bytes
) -> None:
    there = tmp_path / "new"
    verified = restore.restore(lambda: io.BytesIO(taken), None, there)
    before, revision = asyncio.run(records_of(folder))
    after, restored = asyncio.run(records_of(there))
    assert {key: entry for key, entry in before.items() if key not in ("leader", "later")} == after
    assert restored == verified.header.revision == revision - 1
    assert verified.manifest.records["blob/"] == 10
    assert verified.manifest.missing_code == (ELSEWHERE,)
    assert verified.manifest.missing_files == ()
    assert (there / "pki/ca.key").read_bytes() == b"key"
    assert (there / "functions/code/archives" / DIGEST.removeprefix("sha256:")).read_bytes() == CODE
    assert stat.S_IMODE((there / "pki/ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((there / "pki").stat().st_mode) == 0o700
    assert not (there / "pki/.lock").exists()
    assert not (there / restore.UNFINISHED).exists()
    assert b"earlier" in (there / "history.json").read_bytes()
    assert data_stamp.read(there) == versions.stamp_of()
    assert not list((folder / "functions").glob(".backup-*")), "the copy of the calls is gone"


@pytest.mark.root(tries=1)
async def test_a_backup_from_a_full_disk_has_all_but_the_async_calls_and_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path, megabytes=32) as disk:
        folder = data_folder(disk.root / "data")
        store = MemoryStore(SystemClock())
        await store.commit([Put("blob/one", b"x")])
        disk.fill()
        before = sorted(folder.rglob("*"))
        source = BackupSource(
            store, SystemClock(), folder, HeldCode(), server="us", kind="sqlite", cloud=lambda: "f" * 64
        )
        async with source.open() as content:
            data = await asyncio.to_thread(lambda: b"".join(content.write(None)))
        assert sorted(folder.rglob("*")) == before
        await store.close()
    manifest = restore.verify(io.BytesIO(data), None).manifest
    assert manifest.missing_files == ("functions/calls.db",)
    assert manifest.records == {"blob/": 1}
    restore.restore(lambda: io.BytesIO(data), None, tmp_path / "new")
    assert (tmp_path / "new/pki/ca.key").read_bytes() == b"key"
    assert not (tmp_path / "new/functions/calls.db").exists()


def test_calls_that_waited_are_not_executed_again(tmp_path: Path, taken: bytes) -> None:
    restore.restore(lambda: io.BytesIO(taken), None, tmp_path / "new")
    calls = CallRows(tmp_path / "new/functions/calls.db", 1 << 20)
    try:
        assert [(call.id, call.state.value) for call in calls.pending] == [("waits-1", "running")]
    finally:
        calls.close()


async def test_an_encrypted_one_opens_with_its_passphrase_only(tmp_path: Path) -> None:
    data = await take(
        data_folder(tmp_path / "data"), FileSeal(*sealed_stream.seal_by_passphrase("correct horse"))
    )
    assert b"ca.key" not in data
    verified = restore.verify(io.BytesIO(data), sealed_stream.by_passphrase("correct horse"))
    assert verified.is_encrypted
    assert verified.header.cloud == "f" * 64
    with pytest.raises(errors.Unauthenticated, match="the passphrase is wrong"):
        restore.verify(io.BytesIO(data), sealed_stream.by_passphrase("wrong horse"))
    with pytest.raises(errors.Unauthenticated, match="give its passphrase"):
        restore.verify(io.BytesIO(data), None)
    with pytest.raises(errors.Invalid, match="damaged or incomplete"):
        restore.verify(io.BytesIO(data[:-10]), sealed_stream.by_passphrase("correct horse"))


def test_one_that_is_cut_changed_or_something_else_is_refused_before_anything_is_written(
    tmp_path: Path, taken: bytes
) -> None:
    half = len(taken) // 2
    broken = [
        b"",
        b"hello",
        os.urandom(5000),
        taken[:half],
        taken[:-1],
        taken[:-8],
        taken + b"x",
        taken[:half] + bytes([taken[half] ^ 1]) + taken[half + 1 :],
    ]
    for data in broken:
        with pytest.raises(errors.Invalid):
            restore.restore(lambda data=data: io.BytesIO(data), None, tmp_path / "new")  # type: ignore[misc]
    assert not (tmp_path / "new").exists()


def written(
    header: BackupHeader | None = None, name: str = "files/node.id", records: dict[str, int] | None = None
) -> bytes:
    """An archive with one file."""
    header = header or BackupHeader(archive.FORMAT, "0.1.0", "f" * 64, "us", 1.0, 7, "sqlite")
    part = archive.PartSource(name, 2, lambda: [b"id"])
    return b"".join(archive.write(header, [part], lambda parts: BackupManifest(parts, records or {})))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": archive.FORMAT + 1}, "newer"),
        ({"version": "99.0.0"}, "later data"),
        ({"data_format": versions.CURRENT.format + 1}, "later data"),
        ({"version": "0.0.9"}, "one minor version at a time"),
        ({"version": "x"}, "no version"),
    ],
)
def test_one_of_a_version_that_this_one_does_not_take_over_from_is_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    good = BackupHeader(archive.FORMAT, "0.1.0", "f" * 64, "us", 1.0, 7, "sqlite")
    wrong = msgspec.structs.replace(good, **changes)
    with pytest.raises(errors.FailedPrecondition, match=says):
        restore.restore(lambda: io.BytesIO(written(wrong)), None, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_restored_folder_has_the_stamp_of_the_version_that_wrote_the_backup(tmp_path: Path) -> None:
    earlier = BackupHeader(archive.FORMAT, "0.1.7", "f" * 64, "us", 1.0, 7, "sqlite", 1)
    restore.restore(lambda: io.BytesIO(written(earlier)), None, tmp_path)
    assert data_stamp.read(tmp_path) == versions.DataStamp("0.1.7", 1)


@pytest.mark.parametrize(
    "name", ["files/../etc/passwd", "/etc/passwd", "files/pki/../../x", "files/ready.json"]
)
def test_no_part_leads_out_of_the_folder(name: str) -> None:
    with pytest.raises(errors.Invalid, match="does not belong"):
        restore.verify(io.BytesIO(written(name=name)), None)


def test_records_that_do_not_decode_or_are_missing_are_found() -> None:
    header = BackupHeader(archive.FORMAT, "0.1.0", "f" * 64, "us", 1.0, 7, "sqlite")

    def with_records(entries: list[Entry], counts: dict[str, int]) -> bytes:
        parts = archive.store_parts(entries)
        return b"".join(archive.write(header, parts, lambda parts: BackupManifest(parts, counts)))

    bad = Entry("function/f", b'{"name": 3}', 1, 1)
    with pytest.raises(errors.Invalid, match="function/f"):
        restore.verify(io.BytesIO(with_records([bad], {"function/": 1})), None)
    with pytest.raises(errors.Invalid, match="records that its manifest lists"):
        restore.verify(io.BytesIO(with_records([], {"function/": 1})), None)


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path, taken: bytes) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new/precious").write_text("data")
    with pytest.raises(errors.FailedPrecondition, match="precious"):
        restore.restore(lambda: io.BytesIO(taken), None, tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["precious"]


class Killed(BaseException):
    """As if the process had been killed."""


@pytest.mark.parametrize("step", ["marked", "cleared", "records", "store", "file", "written", "finished"])
def test_a_restore_that_is_killed_anywhere_is_marked_and_begins_anew(
    tmp_path: Path, taken: bytes, step: str
) -> None:
    def kill(at: str) -> None:
        if at == step:
            raise Killed

    there = tmp_path / "new"
    with pytest.raises(Killed):
        restore.restore(lambda: io.BytesIO(taken), None, there, failpoint=kill)
    assert (there / restore.UNFINISHED).exists()
    restore.restore(lambda: io.BytesIO(taken), None, there)
    assert not (there / restore.UNFINISHED).exists()
    assert len(asyncio.run(records_of(there))[0]) == 14


class Shared:
    """A `RecordDestination` on a store of the loop that made it."""

    def __init__(self, store: MemoryStore, name: str = "etcd") -> None:
        self.name = name
        self._store = store
        self._loop = asyncio.get_running_loop()

    def check(self) -> None:
        self._run(record_import.check_store(self._store))

    def write(self, entries: Iterator[Entry]) -> None:
        self._run(record_import.import_records(self._store, entries))

    def finish(self) -> None:
        self._run(record_import.finish(self._store))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


@pytest.mark.parametrize("step", ["records", "file", "finishing", "finished"])
async def test_a_restore_into_a_shared_store_that_is_killed_anywhere_is_run_again(
    tmp_path: Path, taken: bytes, step: str
) -> None:
    store = MemoryStore(SystemClock())
    there, shared = tmp_path / "new", Shared(store)

    def run(kill: str = "") -> None:
        def failpoint(at: str) -> None:
            if at == kill:
                raise Killed

        restore.restore(lambda: io.BytesIO(taken), None, there, destination=shared, failpoint=failpoint)

    try:
        with pytest.raises(Killed):
            await asyncio.to_thread(run, step)
        assert (there / restore.UNFINISHED).exists()
        await asyncio.to_thread(run)
        await record_import.check_complete(store)
        assert len((await store.range("")).entries) == 13
        assert (there / "pki/ca.key").read_bytes() == b"key"
        assert not (there / restore.UNFINISHED).exists()
    finally:
        await store.close()


async def test_a_restore_that_only_had_to_be_marked_as_finished_begins_anew_for_another_store(
    tmp_path: Path, taken: bytes
) -> None:
    first, second = MemoryStore(SystemClock()), MemoryStore(SystemClock())

    def kill(at: str) -> None:
        if at == "finished":
            raise Killed

    def run(destination: Shared, failpoint: Callable[[str], None]) -> None:
        restore.restore(
            lambda: io.BytesIO(taken), None, tmp_path, destination=destination, failpoint=failpoint
        )

    try:
        with pytest.raises(Killed):
            await asyncio.to_thread(run, Shared(first), kill)
        await asyncio.to_thread(run, Shared(second, "another"), lambda at: None)
        assert len((await second.range("")).entries) == 13
    finally:
        await first.close()
        await second.close()


async def test_records_are_imported_into_an_empty_shared_store_only(folder: Path, taken: bytes) -> None:
    store = MemoryStore(SystemClock())

    def entries() -> Iterator[Entry]:
        for name, _, content in archive.ArchiveReader(io.BytesIO(taken)).parts():
            if name.startswith(archive.STORE):
                yield from archive.read_rows(b"".join(content))

    def interrupted() -> Iterator[Entry]:
        yield from list(entries())[:5]
        raise Killed

    try:
        with pytest.raises(Killed):
            await record_import.import_records(store, interrupted())
        with pytest.raises(errors.FailedPrecondition, match="interrupted"):
            await record_import.check_complete(store)
        await record_import.import_records(store, entries())
        with pytest.raises(errors.FailedPrecondition, match="interrupted"):
            await record_import.check_complete(store)
        await record_import.finish(store)
        await record_import.check_complete(store)
        keys = [entry.key for entry in (await store.range("")).entries]
        assert len(keys) == 13
        assert not [key for key in keys if key.startswith(store_history.PREFIX)]
        with pytest.raises(errors.FailedPrecondition, match="not empty"):
            await record_import.import_records(store, entries())
    finally:
        await store.close()
