"""Named files of a source on disk: in a folder, or inside a tar that is not extracted.

A tar is scanned once for the offsets of its members, with limits on their number and the length of their
names; then each is read in place. Links inside a tar resolve only to other members. Disk access runs in
threads.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from types import TracebackType
from typing import NamedTuple, Protocol

from skerry.kit.tar import reader as tar_reader
from skerry.kit.tar.byte_feed import ByteFeed
from skerry.kit.tar.errors import TarError
from skerry.kit.tasks import in_thread
from skerry.model import errors

_CHUNK = 1024 * 1024
_MAX_MEMBERS = 100_000
_MAX_LINKS = 8
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zX")


class SourceFiles(Protocol):
    """Files by name."""

    async def size(self, name: str) -> int:
        """Raises `NotFound` if there is no such file."""
        ...

    async def read(self, name: str, most: int) -> bytes:
        """All of it; raises `TooLarge` if it has more than `most` bytes."""
        ...

    def stream(self, name: str) -> AsyncGenerator[bytes, None]:
        """All of it, in pieces."""
        ...

    async def close(self) -> None: ...


class FolderFiles:
    """Files below a folder."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def size(self, name: str) -> int:
        with open_file(f"{self._path}/{name}") as opened:
            return opened.size

    async def read(self, name: str, most: int) -> bytes:
        path = f"{self._path}/{name}"
        with open_file(path) as opened:
            return await opened.read(opened.whole, most, path)

    async def stream(self, name: str) -> AsyncGenerator[bytes, None]:
        with open_file(f"{self._path}/{name}") as opened:
            async with aclosing(opened.stream(opened.whole)) as pieces:
                async for piece in pieces:
                    yield piece

    async def close(self) -> None:
        """Nothing stays open."""


class TarFiles:
    """Members of a tar; created by `open`, which scans it."""

    def __init__(
        self, path: str, opened: OpenFile, spans: dict[str, FileSpan], links: dict[str, str]
    ) -> None:
        self._path = path
        self._opened = opened
        self._spans = spans
        self._links = links

    @classmethod
    async def open(cls, path: str) -> TarFiles:
        opened = open_file(path)
        try:
            return cls(path, opened, *await in_thread(_scan, opened, path))
        except BaseException:
            opened.close()
            raise

    async def size(self, name: str) -> int:
        return self._span(name).size

    async def read(self, name: str, most: int) -> bytes:
        return await self._opened.read(self._span(name), most, f"{name} in {self._path}")

    def stream(self, name: str) -> AsyncGenerator[bytes, None]:
        return self._opened.stream(self._span(name))

    async def close(self) -> None:
        self._opened.close()

    def _span(self, name: str) -> FileSpan:
        at = _normalized(name)
        for _ in range(_MAX_LINKS):
            if at in self._spans:
                return self._spans[at]
            if at not in self._links:
                break
            at = self._links[at]
        raise errors.NotFound(
            f"{self._path} contains no file {name[:200]!r}; it is damaged, or of another format"
        )


class FileSpan(NamedTuple):
    """Offset and length of bytes in a file."""

    start: int
    size: int


class OpenFile:
    """A regular file, open for reading at any offset."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.status = os.fstat(descriptor)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self.descriptor)

    @property
    def size(self) -> int:
        return self.status.st_size

    @property
    def whole(self) -> FileSpan:
        return FileSpan(0, self.size)

    async def read(self, span: FileSpan, most: int, label: str) -> bytes:
        """All of `span`; raises `TooLarge` if that is more than `most` bytes."""
        if span.size > most:
            raise errors.TooLarge(f"{label} has {span.size} bytes; at most {most} are read")
        return await in_thread(os.pread, self.descriptor, span.size, span.start)

    async def stream(self, span: FileSpan) -> AsyncGenerator[bytes, None]:
        """All of `span`, in pieces; less if the file was truncated meanwhile."""
        start, remaining = span
        while remaining and (
            piece := await in_thread(os.pread, self.descriptor, min(_CHUNK, remaining), start)
        ):
            start, remaining = start + len(piece), remaining - len(piece)
            yield piece


def open_file(path: str) -> OpenFile:
    """The regular file at `path`; raises errors for people."""
    try:
        # Do not block on a named pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise errors.NotFound(f"this node has no file {path}") from None
    except OSError as error:
        raise errors.FailedPrecondition(f"{path} cannot be read: {(error.strerror or '').lower()}") from None
    opened = OpenFile(descriptor)
    if not stat.S_ISREG(opened.status.st_mode):
        opened.close()
        raise errors.FailedPrecondition(f"{path} is not a file")
    return opened


class _FileFeed(ByteFeed):
    """Input of the tar reader: a file, in which skipped bytes are not read."""

    def __init__(self, opened: OpenFile) -> None:
        super().__init__(iter(()), 0)
        self._descriptor = opened.descriptor
        self._offset = 0

    @property
    def position(self) -> int:
        return self._offset

    def take(self, length: int) -> bytes:
        data = os.pread(self._descriptor, length, self._offset)
        self._offset += len(data)
        return data if len(data) == length else b""

    def skip(self, length: int) -> None:
        self._offset += length

    def rest(self) -> Iterator[memoryview]:
        return iter(())


def _scan(opened: OpenFile, path: str) -> tuple[dict[str, FileSpan], dict[str, str]]:
    """Spans of every file of a tar, and targets of its links."""
    spans: dict[str, FileSpan] = {}
    links: dict[str, str] = {}
    feed = _FileFeed(opened)
    try:
        for entry in tar_reader.TarReader(feed).entries():
            if len(spans) + len(links) >= _MAX_MEMBERS:
                raise errors.TooLarge(f"{path} has more than {_MAX_MEMBERS} members")
            if feed.position + entry.size > opened.size:
                raise errors.Unprocessable(f"{path} is truncated: its last member is cut off; save it again")
            name = _normalized(os.fsdecode(entry.name))
            if entry.kind == tar_reader.FILE:
                spans[name] = FileSpan(feed.position, entry.size)
            elif entry.kind == tar_reader.SYMLINK:
                links[name] = _normalized(posixpath.join(posixpath.dirname(name), os.fsdecode(entry.link)))
            elif entry.kind == tar_reader.HARD_LINK:
                links[name] = _normalized(os.fsdecode(entry.link))
    except TarError as error:
        if os.pread(opened.descriptor, 4, 0).startswith(_COMPRESSED):
            raise errors.Unprocessable(f"{path} is compressed; decompress it first, as with gunzip") from None
        raise errors.Unprocessable(f"{path} cannot be read as an archive: it {error.message}") from None
    return spans, links


def _normalized(name: str) -> str:
    """The normalised name of a member; names that lead out of the archive lead to its top, where nothing
    is."""
    return posixpath.normpath("/" + name).lstrip("/")
