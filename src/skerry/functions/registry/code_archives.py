"""Unpacks an archive into one folder, readable by every worker.

Blocking. Nothing is ever written through a link: each folder on the path is opened from the one above it and
must be a folder. Owner and modes are ours, not the archive's; times are kept, because compiled Python goes by
them. Links may point at what is in the same tree and nowhere else. Plain tar is taken, as serverledge-cli,
Go, GNU and Python write it: `skerry.kit.tar.reader` reads it, and `skerry.functions.registry.code_store`
decides where the folder is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from skerry.kit.tar import reader as tar_reader
from skerry.kit.tar.byte_feed import ByteFeed
from skerry.kit.tar.errors import TarError
from skerry.model import errors

_FOLDER_MODE: Final = 0o755
_FILE_MODE: Final = 0o644
_PROGRAM_MODE: Final = 0o755
_MOST_DEPTH: Final = 64
_MOST_NAME: Final = 1024
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_COMPRESSED: Final = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_REFUSED: Final = {
    tar_reader.CHARACTER_DEVICE: "a device",
    tar_reader.BLOCK_DEVICE: "a device",
    tar_reader.FIFO: "a named pipe",
}


class CodeMember(NamedTuple):
    """One thing in an archive of code; `content` is a part of the archive, not a copy of it."""

    name: str
    kind: bytes  # FILE, FOLDER, SYMLINK or HARD_LINK
    is_executable: bool
    mtime_ns: int
    link: str
    content: memoryview


def unpack(data: bytes, folder: Path, *, max_bytes: int) -> None:
    """Unpack the archive into `folder`, which is empty.

    Raises `Invalid` for an invalid archive or a forbidden member, `TooLarge` if unpacked it is more than
    `max_bytes`, and `Unavailable` if the disk is full; the caller removes what was unpacked so far.
    """
    tree = _Tree(folder, max_bytes)
    try:
        for member in members(data):
            tree.make(member)
    finally:
        tree.close()
    tree.check()


def members(data: bytes) -> Iterator[CodeMember]:
    """What is in the archive, in its order. Raises `Invalid` where it is not one."""
    if not data:
        raise _invalid("is empty; send a tar archive, base64-encoded")
    for magic, compression in _COMPRESSED.items():
        if data.startswith(magic):
            raise _invalid(f"is {compression}; send an uncompressed tar archive")
    if len(data) < tar_reader.BLOCK:
        raise _invalid("is not a tar archive, or cut off; send all of it")
    reader = tar_reader.TarReader(ByteFeed(iter([data]), len(data)))
    try:
        for entry in reader.entries():
            name = _decode(entry.name)
            if entry.kind in _REFUSED:
                raise _invalid(f"holds {name[:100]!r}, which is {_REFUSED[entry.kind]}")
            yield CodeMember(
                name,
                entry.kind,
                is_executable=bool(entry.mode & 0o111),
                mtime_ns=max(0, entry.mtime_ns),
                link=_decode(entry.link),
                content=_whole(reader.content()),
            )
    except TarError as error:
        raise _invalid(error.message) from None


class _Tree:
    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._root = os.open(folder, _OPEN_FOLDER)
        self._max_bytes = max_bytes
        self._bytes = 0
        self._files: set[tuple[str, ...]] = set()
        self._links: dict[tuple[str, ...], str] = {}

    def close(self) -> None:
        os.close(self._root)

    def make(self, member: CodeMember) -> None:
        parts = _parts(member.name)
        self._bytes += len(member.content)
        if self._bytes > self._max_bytes:
            raise errors.TooLarge(
                f"the code takes more than {self._max_bytes} bytes unpacked; leave out what it does not "
                "need, or raise functions.max_unpacked_bytes"
            )
        if not parts:
            if member.kind != tar_reader.FOLDER:
                raise _refused(member, "names the folder itself")
            return
        try:
            with self._opened(parts[:-1]) as parent:
                self._make(member, parts, parent)
        except OSError as error:
            raise _of_system(member, error) from error

    def check(self) -> None:
        """Raise unless every link, followed through all others, stays in the tree and leads to something."""
        if not self._files:
            raise _invalid("holds no file")
        root = os.path.realpath(self._folder)
        for parts, target in self._links.items():
            end = os.path.realpath(os.path.join(root, *parts))
            if end != root and not end.startswith(root + os.sep):
                raise _out("/".join(parts), target)

    def _make(self, member: CodeMember, parts: tuple[str, ...], parent: int) -> None:
        name = parts[-1]
        if member.kind == tar_reader.FOLDER:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, _FOLDER_MODE, dir_fd=parent)
            with self._opened((name,), parent) as made:
                os.fchmod(made, _FOLDER_MODE)
            return
        if parts in self._files or parts in self._links:  # what comes later counts, as with every tar
            os.unlink(name, dir_fd=parent)
            self._files.discard(parts)
            self._links.pop(parts, None)
        if member.kind == tar_reader.FILE:
            self._write(member, name, parent)
            self._files.add(parts)
        elif member.kind == tar_reader.SYMLINK:
            if not member.link:
                raise _refused(member, "is a link to nothing")
            if _leaves(parts, member.link):
                raise _out(member.name, member.link)
            os.symlink(member.link, name, dir_fd=parent)
            self._links[parts] = member.link
        else:
            target = _parts(member.link)
            if target not in self._files:
                raise _refused(member, f"is a hard link to {member.link[:100]!r}, which is no file before it")
            with self._opened(target[:-1]) as beside:
                os.link(target[-1], name, src_dir_fd=beside, dst_dir_fd=parent, follow_symlinks=False)
            self._files.add(parts)

    def _write(self, member: CodeMember, name: str, parent: int) -> None:
        file = os.open(name, _CREATE, _FILE_MODE, dir_fd=parent)
        try:
            rest = member.content
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fchmod(file, _PROGRAM_MODE if member.is_executable else _FILE_MODE)
            with contextlib.suppress(OverflowError):  # a time that no file can have
                os.utime(file, ns=(member.mtime_ns, member.mtime_ns))
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _opened(self, parts: tuple[str, ...], above: int | None = None) -> Iterator[int]:
        """The folder of that name, created with those above it if it does not exist."""
        current = os.dup(self._root if above is None else above)
        try:
            for part in parts:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, _FOLDER_MODE, dir_fd=current)
                    os.chmod(part, _FOLDER_MODE, dir_fd=current)  # whatever the umask
                below = os.open(part, _OPEN_FOLDER, dir_fd=current)
                os.close(current)
                current = below
            yield current
        finally:
            os.close(current)


def _whole(pieces: Iterator[memoryview]) -> memoryview:
    """The content of an entry, read to its end: what came in one piece is one piece."""
    content, *more = [*pieces] or [memoryview(b"")]
    assert not more, "an archive in memory is one chunk"
    return content


def _decode(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise _invalid(f"holds the name {name[:100]!r}, which is not UTF-8") from error


def _parts(name: str) -> tuple[str, ...]:
    """The name as steps from the folder, without `.` and `..`; raises for what leads out of it."""
    if name.startswith("/"):
        raise _invalid(f"holds the absolute name {name[:100]!r}; use names in it")
    if _is_outside(end := posixpath.normpath(name)):
        raise _invalid(f"holds {name[:100]!r}, which leads out of its folder")
    parts = tuple(part for part in end.split("/") if part != ".")
    if len(parts) > _MOST_DEPTH or len(name) > _MOST_NAME:
        raise _invalid(
            f"holds {name[:100]!r}, which is too deep or too long: at most {_MOST_DEPTH} folders "
            f"and {_MOST_NAME} characters"
        )
    return parts


def _leaves(parts: tuple[str, ...], target: str) -> bool:
    """True if the link at `parts` points out of the tree, by its text alone."""
    if target.startswith("/"):
        return True
    return _is_outside(posixpath.normpath(posixpath.join(*parts[:-1], target)))


def _is_outside(normalised: str) -> bool:
    return normalised == ".." or normalised.startswith("../")


def _refused(member: CodeMember, why: str) -> errors.Invalid:
    return _invalid(f"holds {member.name[:100]!r}, which {why}")


def _out(name: str, target: str) -> errors.Invalid:
    return _invalid(f"holds {name[:100]!r}, a link to {target[:100]!r}, which is out of its folder")


def _invalid(what: str) -> errors.Invalid:
    return errors.Invalid(f"the code {what}", field="code")


def _of_system(member: CodeMember, error: OSError) -> errors.SkerryError:
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        return _refused(member, "lies below what is no folder")
    if error.errno in (errno.EEXIST, errno.EISDIR):
        return _refused(member, "is there already as something else")
    if error.errno == errno.ENAMETOOLONG:
        return _refused(member, "has a name too long for a file")
    if error.errno in _FULL:
        return errors.Unavailable(
            "the disk has no space for the code; free some and try again", detail=repr(error)
        )
    return errors.Unavailable(
        f"the code could not be unpacked: {error.strerror}; check the node's disk", detail=repr(error)
    )
