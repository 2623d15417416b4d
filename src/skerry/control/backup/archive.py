"""The file of a backup: a tar archive, compressed with gzip, and encrypted on request.

    header.json        which cloud, when, of which version and revision: a `BackupHeader`
    store/000001       records of the store as of one revision, in MessagePack; as many as needed
    files/...          files of the data folder, by their path in it
    manifest.json      size and SHA-256 of all of the above, and a summary: a `BackupManifest`

It is written and read as a stream, in constant memory. A file without its manifest, which is last, is not
whole. Nothing here decides what goes into a backup (`skerry.control.backup.sources`), or where a restored one
goes (`skerry.control.backup.restore`). Blocking.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import IO, TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from skerry import __version__
from skerry.kit import sealed_stream
from skerry.kit.sealed_stream import NotUnsealed, Reader, SealReader, SealWriter, Unlock
from skerry.model import errors, versions
from skerry.model.versions import DataStamp
from skerry.store.protocol import Entry

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

FORMAT: Final = 1
HEADER: Final = "header.json"
MANIFEST: Final = "manifest.json"
STORE: Final = "store/"
FILES: Final = "files/"
_BLOCK: Final = 512  # of tar
_READ: Final = 256 * 1024
_LEVEL: Final = 1  # records compress well at any
_STORE_PART: Final = 4 * 1024**2  # about; it is in memory when it is written and read
_MAX_STORE_PART: Final = 16 * 1024**2
_MAX_JSON: Final = 64 * 1024**2
_MAX_PARTS: Final = 1_000_000
_STORE_NAME: Final = re.compile(r"store/[0-9]{6}")
# What may be restored; whatever else is in an archive was not written by us.
_FILE_NAME: Final = re.compile(
    r"files/(?:node\.id|pki/[A-Za-z0-9][A-Za-z0-9._-]{0,63}|functions/calls\.db|functions/code/archives/[0-9a-f]{64})"
)


class BackupHeader(msgspec.Struct, frozen=True):
    """What a backup is of. `cloud` is the fingerprint of its CA, `server` the id of the server."""

    format: int
    version: str
    cloud: str
    server: str
    created_at: float
    revision: int
    store: str  # `sqlite` or `etcd`
    data_format: int = versions.UNSTAMPED.format  # of data folders and records

    @property
    def stamp(self) -> DataStamp:
        """Of the data folder that it was taken from."""
        return DataStamp(self.version, self.data_format)


class BackupPart(msgspec.Struct, frozen=True):
    """One file of the archive."""

    name: str
    bytes: int
    sha256: str


class BackedUpVolume(msgspec.Struct, frozen=True):
    """A volume, whose data is not in the backup."""

    namespace: str
    name: str
    size_gb: int
    node: str


class BackupManifest(msgspec.Struct, frozen=True):
    """What is in a backup, and a summary for people."""

    parts: tuple[BackupPart, ...]
    records: dict[str, int]  # how many, by prefix
    volumes: tuple[BackedUpVolume, ...] = ()
    missing_code: tuple[str, ...] = ()  # of functions, that was not on the server
    missing_files: tuple[str, ...] = ()  # of the data folder, whose disk had no room for a copy

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class PartSource(NamedTuple):
    """A part that is to be written; `read` gives exactly `size` bytes."""

    name: str
    size: int
    read: Callable[[], Iterable[bytes]]


class FileSeal(NamedTuple):
    """How a backup is encrypted: by `skerry.kit.sealed_stream`."""

    header: bytes
    key: bytes

    def __repr__(self) -> str:
        return "FileSeal(...)"


class _StoreRow(msgspec.Struct, frozen=True, array_like=True):
    key: str
    value: bytes
    created: int
    revision: int


_encode_rows = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[_StoreRow]).decode


def store_parts(entries: Iterable[Entry]) -> Iterator[PartSource]:
    """The records, in parts of some megabytes."""
    rows: list[tuple[str, bytes, int, int]] = []
    size, number = 0, 0
    for entry in entries:
        rows.append((entry.key, entry.value, entry.created, entry.revision))
        size += len(entry.key) + len(entry.value)
        if size >= _STORE_PART:
            number += 1
            yield _store_part(number, rows)
            rows, size = [], 0
    if rows or not number:
        yield _store_part(number + 1, rows)


def _store_part(number: int, rows: list[tuple[str, bytes, int, int]]) -> PartSource:
    data = _encode_rows(rows)
    return PartSource(f"{STORE}{number:06}", len(data), lambda: [data])


def read_rows(data: bytes) -> list[Entry]:
    """The records of a part. Raises `Invalid`."""
    try:
        return [Entry(row.key, row.value, row.created, row.revision) for row in _decode_rows(data)]
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise errors.Invalid(f"the backup is damaged: records cannot be read ({error})") from None


class _Output:
    """Collects what was written until it is taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        self.size += len(data)
        return len(data)

    def flush(self) -> None: ...

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts, self.size = [], 0
        return data


def write(
    header: BackupHeader,
    parts: Iterable[PartSource],
    finish: Callable[[tuple[BackupPart, ...]], BackupManifest],
    seal: FileSeal | None = None,
) -> Iterator[bytes]:
    """The bytes of the archive. `finish` is called with what was written, for the manifest."""
    out = _Output()
    sealed = None if seal is None else SealWriter(out, seal.header, seal.key)
    packed = gzip.GzipFile(fileobj=cast(IO[bytes], sealed or out), mode="wb", compresslevel=_LEVEL, mtime=0)
    written: list[BackupPart] = []
    head = msgspec.json.encode(header)
    for part in chain([PartSource(HEADER, len(head), lambda: [head])], parts):
        digest, size = hashlib.sha256(), 0
        packed.write(_tar_header(part.name, part.size))
        for data in part.read():
            digest.update(data)
            size += len(data)
            packed.write(data)
            if out.size >= _READ:
                yield out.take()
        if size != part.size:
            raise errors.Internal(f"{part.name} has {size} bytes now, and had {part.size}")
        packed.write(bytes(-size % _BLOCK))
        written.append(BackupPart(part.name, size, digest.hexdigest()))
    last = msgspec.json.encode(finish(tuple(written)))
    packed.write(_tar_header(MANIFEST, len(last)) + last + bytes(-len(last) % _BLOCK) + bytes(2 * _BLOCK))
    packed.close()
    if sealed is not None:
        sealed.close()
    yield out.take()


def _tar_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o600
    return info.tobuf(tarfile.GNU_FORMAT)


class ArchiveReader:
    """A backup that is read once, from its beginning: `header`, then `parts` to their end, then `manifest`.

    Raises `Invalid` for what is no backup, damaged or incomplete, `FailedPrecondition` for one of a version
    that this one does not take over from, and `Unauthenticated` if it is encrypted and `unlock` does not open
    it.
    """

    def __init__(self, raw: Reader, unlock: Unlock | None = None) -> None:
        self._manifest: BackupManifest | None = None
        self._seen: list[BackupPart] = []
        with _explained():
            peeked = _Peeked(raw, len(sealed_stream.MAGIC))
            self.is_encrypted = sealed_stream.is_sealed(peeked.beginning)
            if self.is_encrypted and unlock is None:
                raise errors.Unauthenticated(
                    "the backup is encrypted: give its passphrase (--passphrase-file, --passphrase-env) "
                    "or the "
                    "file of the key that it was encrypted for (--key-file)"
                )
            plain: Reader = peeked
            if self.is_encrypted:
                assert unlock is not None
                try:
                    plain = SealReader(peeked, unlock)
                except NotUnsealed as error:
                    raise errors.Unauthenticated(f"the backup cannot be decrypted: {error}") from None
            self._packed = gzip.GzipFile(fileobj=_RawStream(plain), mode="rb")
            self._tar = tarfile.open(fileobj=self._packed, mode="r|", bufsize=_READ)  # noqa: SIM115
            self._members = iter(self._tar)
            first = next(self._members, None)
            if first is None or first.name != HEADER:
                raise errors.Invalid("this is no backup of Skerry: it does not begin with a header")
            data = self._load(first, _MAX_STORE_PART)
            self.header = _read_header(data)
            self._seen.append(BackupPart(HEADER, len(data), hashlib.sha256(data).hexdigest()))

    def parts(self) -> Iterator[tuple[str, int, Iterator[bytes]]]:
        """Name, size and content of each part, which is read to its end before the next. The last digest is
        compared when they end: until then nothing that was read counts."""
        while True:
            with _explained():
                member = next(self._members, None)
                if member is None:
                    raise errors.Invalid("the backup is incomplete: it has no manifest")
                if member.name == MANIFEST:
                    self._finish(self._load(member, _MAX_JSON))
                    return
            if len(self._seen) >= _MAX_PARTS or not member.isreg() or not _is_known(member):
                raise errors.Invalid(
                    f"the backup has a part that does not belong there: {member.name[:100]!r}"
                )
            content = self._content(member)
            yield member.name, member.size, content
            for _ in content:
                pass  # what the caller left

    @property
    def manifest(self) -> BackupManifest:
        assert self._manifest is not None, "read all parts first"
        return self._manifest

    def _content(self, member: tarfile.TarInfo) -> Iterator[bytes]:
        digest = hashlib.sha256()
        with _explained():
            file = self._tar.extractfile(member)
            assert file is not None, "a regular file"
        while True:
            with _explained():
                data = file.read(_READ)
            if not data:
                break
            digest.update(data)
            yield data
        self._seen.append(BackupPart(member.name, member.size, digest.hexdigest()))

    def _load(self, member: tarfile.TarInfo, most: int) -> bytes:
        if not member.isreg() or member.size > most:
            raise errors.Invalid(f"the backup is damaged: {member.name[:100]} is too large")
        file = self._tar.extractfile(member)
        assert file is not None, "a regular file"
        return file.read()

    def _finish(self, data: bytes) -> None:
        try:
            manifest = msgspec.json.decode(data, type=BackupManifest)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise errors.Invalid(f"the manifest of the backup cannot be read: {error}") from None
        if manifest.parts != tuple(self._seen):
            wrong = sorted({one.name for one in set(manifest.parts) ^ set(self._seen)}) or [
                "the order of parts"
            ]
            raise errors.Invalid(f"the backup is damaged: {', '.join(wrong[:5])} is not what was written")
        if next(self._members, None) is not None:
            raise errors.Invalid("the backup goes on behind its manifest")
        while self._packed.read(_READ):
            pass  # its checksum is at the end
        self._manifest = manifest


class _Peeked:
    """`raw`, of which the beginning was read."""

    def __init__(self, raw: Reader, size: int) -> None:
        self._raw = raw
        self.beginning = b""
        while len(self.beginning) < size and (part := raw.read(size - len(self.beginning))):
            self.beginning += part
        self._left = self.beginning

    def read(self, size: int = -1) -> bytes:
        if self._left:
            part, self._left = self._left[:size], self._left[size:]
            return part
        return self._raw.read(size)


class _RawStream(io.RawIOBase):
    """A `Reader` as the decompressor takes it."""

    def __init__(self, source: Reader) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._source.read(len(view))
        view[: len(data)] = data
        return len(data)


class _explained:  # noqa: N801 - used as a function
    """Failures to read an archive, as errors for people."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NotUnsealed):
            raise errors.Invalid(f"the backup cannot be read: {error}") from error
        if isinstance(error, EOFError):
            raise errors.Invalid("the backup is incomplete: it ends too early") from error
        # `BadGzipFile` is an OSError without a number, unlike failures of the disk.
        is_damaged = isinstance(error, tarfile.TarError | zlib.error | UnicodeError | ValueError)
        if is_damaged or (isinstance(error, OSError) and error.errno is None):
            raise errors.Invalid(f"this is no backup of Skerry, or it is damaged ({error})") from error


def _is_known(member: tarfile.TarInfo) -> bool:
    if _STORE_NAME.fullmatch(member.name):
        return member.size <= _MAX_STORE_PART
    return _FILE_NAME.fullmatch(member.name) is not None


def _read_header(data: bytes) -> BackupHeader:
    class _Format(msgspec.Struct):
        format: int
        version: str
        data_format: int = versions.UNSTAMPED.format

    try:
        written = msgspec.json.decode(data, type=_Format)
        versions.check_data(DataStamp(written.version, written.data_format), "the backup")
        if written.format > FORMAT:
            raise errors.FailedPrecondition(
                f"the backup was written by Skerry {written.version[:40]} (format {written.format}), "
                f"which is newer "
                f"than this one ({__version__}, format {FORMAT}): use that version, or a later one"
            )
        return msgspec.json.decode(data, type=BackupHeader)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise errors.Invalid(f"the header of the backup cannot be read: {error}") from None
