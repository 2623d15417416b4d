"""What goes into a backup of this server, while it runs.

The store is read as of one revision, and has what was acknowledged before; records under a lease (who leads,
which nodes are alive) are left out, as leases end with those who hold them. Files of keys are read before and
after it, and both must be the same: a key that is replaced meanwhile would fit neither. Code that functions
of that revision use is held until it is written. Async results are copied as of a later moment than the
store; if the disk has no room for the copy, the backup is taken without them, and says so."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog

from skerry import __version__
from skerry.control.backup import archive, records
from skerry.control.backup.archive import (
    FILES,
    BackupHeader,
    BackupManifest,
    BackupPart,
    FileSeal,
    PartSource,
)
from skerry.kit import disk_reserve, files, json_codec, tasks
from skerry.kit.clock import Clock
from skerry.model import errors, versions
from skerry.model.functions import Function
from skerry.model.ids import Digest
from skerry.store.protocol import NO_LEASE, Entry, Store
from skerry.store.sqlite import transfer

log = structlog.get_logger(__name__)

NODE_ID: Final = "node.id"
PKI: Final = "pki"
CALLS: Final = "functions/calls.db"
CODE: Final = "functions/code/archives"
_COPY: Final = ".backup-"  # begins the name of a copy of CALLS
_TRIES: Final = 20
_READ: Final = 1024**2
_MAX_KEY_FILE: Final = 1024**2


class CodeHolder(Protocol):
    """The code of functions on this server."""

    def hold(self, digest: Digest) -> None: ...

    def release(self, digest: Digest) -> None: ...

    def has_archive(self, digest: Digest) -> bool: ...


class BackupContent(NamedTuple):
    """What is to be written, as of one moment."""

    header: BackupHeader
    entries: Sequence[Entry]
    files: Sequence[PartSource]
    missing_code: tuple[str, ...]
    missing_files: tuple[str, ...] = ()

    def write(self, seal: FileSeal | None) -> Iterator[bytes]:
        """The archive. Blocking."""

        def finish(parts: tuple[BackupPart, ...]) -> BackupManifest:
            return BackupManifest(
                parts,
                records.counts(self.entries),
                records.volumes(self.entries),
                self.missing_code,
                self.missing_files,
            )

        parts = chain(archive.store_parts(self.entries), self.files)
        return archive.write(self.header, parts, finish, seal)


class BackupSource:
    """This server as it is backed up."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        folder: Path,
        code: CodeHolder,
        *,
        server: str,
        kind: str,
        cloud: Callable[[], str],
    ) -> None:
        """`kind` is that of the store, `cloud` gives the fingerprint of the CA."""
        self._store = store
        self._clock = clock
        self._folder = folder
        self._code = code
        self._server = server
        self._kind = kind
        self._cloud = cloud

    @asynccontextmanager
    async def open(self) -> AsyncIterator[BackupContent]:
        """What there is now; it can be written until the context ends."""
        with contextlib.ExitStack() as undo:
            keys, entries, revision = await self._read_consistent()
            used = _digests(entries)
            for digest in used:
                self._code.hold(digest)
                undo.callback(self._code.release, digest)
            missing = tuple(sorted(digest for digest in used if not self._code.has_archive(digest)))
            if missing:
                log.warning("backup.code_missing", digests=missing)
            left_out: tuple[str, ...] = ()
            try:
                calls = await tasks.in_thread(self._copy_calls)
            except OSError as error:
                if error.errno not in disk_reserve.FULL:
                    raise
                # A backup is wanted most when the disk is full.
                calls, left_out = None, (CALLS,)
                log.warning("backup.calls_missing", error=str(error))
            if calls is not None:
                undo.callback(os.close, calls)
            header = BackupHeader(
                archive.FORMAT,
                __version__,
                self._cloud(),
                self._server,
                self._clock.now(),
                revision,
                self._kind,
                versions.CURRENT.format,
            )
            parts = [_bytes_part(name, data) for name, data in keys.items()]
            parts += await asyncio.to_thread(self._code_parts, used, frozenset(missing))
            if calls is not None:
                parts.append(_file_part(CALLS, calls))
            yield BackupContent(header, entries, parts, missing, left_out)

    async def _read_consistent(self) -> tuple[dict[str, bytes], list[Entry], int]:
        keys = await asyncio.to_thread(self._read_keys)
        for _ in range(_TRIES):
            page = await self._store.range("")
            again = await asyncio.to_thread(self._read_keys)
            if again == keys:
                return keys, [entry for entry in page.entries if entry.lease == NO_LEASE], page.revision
            keys = again
        raise errors.Unavailable("the files of keys change all the time; try again later")

    def _read_keys(self) -> dict[str, bytes]:
        """The files of `pki`, and the id of this server."""
        found = {NODE_ID: (self._folder / NODE_ID).read_bytes()}
        for path in sorted((self._folder / PKI).iterdir()):
            if path.name.startswith(".") or not path.is_file() or path.stat().st_size > _MAX_KEY_FILE:
                continue  # a lock, or one that is being written
            with contextlib.suppress(FileNotFoundError):
                found[f"{PKI}/{path.name}"] = path.read_bytes()
        return found

    def _copy_calls(self) -> int | None:
        """A copy of the database of async calls, which has no name any more; None if there is none."""
        source = self._folder / CALLS
        if not source.exists():
            return None
        for left_over in source.parent.glob(f"{_COPY}*"):
            left_over.unlink()
        copy = source.with_name(f"{_COPY}{secrets.token_hex(6)}")
        try:
            os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, files.PRIVATE))
            transfer.copy_calls(source, copy)
            return os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            for path in source.parent.glob(f"{copy.name}*"):
                path.unlink()

    def _code_parts(self, used: Collection[Digest], missing: Collection[str]) -> list[PartSource]:
        parts = []
        for digest in sorted(used):
            if digest in missing:
                continue
            name = digest.removeprefix("sha256:")
            path = self._folder / CODE / name
            parts.append(PartSource(f"{FILES}{CODE}/{name}", path.stat().st_size, _path_reader(path)))
        return parts


def _digests(entries: Sequence[Entry]) -> set[Digest]:
    functions = [json_codec.decode(one.value, Function) for one in entries if one.key.startswith("function/")]
    return {function.code for function in functions if function.code is not None}


def _bytes_part(name: str, data: bytes) -> PartSource:
    return PartSource(f"{FILES}{name}", len(data), lambda: [data])


def _file_part(name: str, descriptor: int) -> PartSource:
    def read() -> Iterator[bytes]:
        at = 0
        while data := os.pread(descriptor, _READ, at):
            yield data
            at += len(data)

    return PartSource(f"{FILES}{name}", os.fstat(descriptor).st_size, read)


def _path_reader(path: Path) -> Callable[[], Iterator[bytes]]:
    def read() -> Iterator[bytes]:
        with path.open("rb") as file:
            while data := file.read(_READ):
                yield data

    return read
