"""A reader of tar: v7, ustar, GNU and pax, as one stream of entries.

Reads what Docker, containerd and umoci read (all three use Go's reader), and where the formats leave a choice
it chooses as they do: names of users and global pax headers are ignored. The standard library's reader is not
used: in the Pythons we run on, an archive with a negative size makes it loop for ever, and one that is
damaged in the middle reads as a short one. Here every byte is read once, and what is not supported is a
`TarError`. Knows nothing of files: whether an entry may become one is decided by
`skerry.node.layers.unpacker.layer_writer` for layers and `skerry.functions.registry.code_archives` for code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from skerry.kit.tar import fields
from skerry.kit.tar.byte_feed import ByteFeed
from skerry.kit.tar.errors import MalformedTar, RefusedTar, spell
from skerry.kit.tar.fields import TarFieldError

BLOCK: Final = 512
MOST_SPECIAL_BYTES: Final = 1 << 20  # a pax header, or a long name
_ZEROS: Final = bytes(BLOCK)

FILE: Final = b"0"
HARD_LINK: Final = b"1"
SYMLINK: Final = b"2"
CHARACTER_DEVICE: Final = b"3"
BLOCK_DEVICE: Final = b"4"
FOLDER: Final = b"5"
FIFO: Final = b"6"
_FILES: Final = frozenset({b"0", b"\0", b"7"})  # 7 was for contiguous files
_WITHOUT_CONTENT: Final = frozenset({HARD_LINK, SYMLINK, CHARACTER_DEVICE, BLOCK_DEVICE, FOLDER, FIFO})
_PAX: Final = b"x"
_GLOBAL_PAX: Final = b"g"
_LONG_NAME: Final = b"L"
_LONG_LINK: Final = b"K"
_EXTENDED: Final = frozenset({_PAX, _GLOBAL_PAX, _LONG_NAME, _LONG_LINK})
_SPARSE: Final = b"S"

_HEADER: Final = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s64s8s8s155s12s")
_XATTR: Final = b"SCHILY.xattr."
_NANOSECONDS: Final = 10**9


class TarEntry:
    """One entry of an archive, with the values of all its headers."""

    __slots__ = ("gid", "kind", "link", "major", "minor", "mode", "mtime_ns", "name", "size", "uid", "xattrs")

    def __init__(
        self, name: bytes, kind: bytes = FILE, *, mode: int = 0o644, size: int = 0, major: int = 0
    ) -> None:
        self.name = name
        self.kind = kind
        self.mode = mode
        self.size = size
        self.link = b""
        self.uid = self.gid = self.mtime_ns = self.minor = 0
        self.major = major
        self.xattrs: dict[bytes, bytes] = {}


class TarReader:
    """The entries of a tar, one after the other; the content of each is read before the next, or not at
    all."""

    def __init__(self, feed: ByteFeed) -> None:
        self._feed = feed
        self._unread = 0  # content of the present entry
        self._padding = 0
        self._header_at = 0
        self.has_end = False  # its end was marked, and not just the end of the stream

    def entries(self) -> Iterator[TarEntry]:
        """Each entry in turn; at the end, everything after it has been read and found to be empty."""
        feed = self._feed
        while True:
            if self._unread or self._padding:
                feed.skip(self._unread + self._padding)
                self._unread = self._padding = 0
            try:
                entry = self._next()
            except TarFieldError as error:
                where = f"is damaged at byte {self._header_at}" if self._header_at else "is not a tar archive"
                raise MalformedTar(f"{where}: {error}") from None
            if entry is None:
                return
            yield entry

    def content(self) -> Iterator[memoryview]:
        """What is in the present entry."""
        unread, self._unread = self._unread, 0
        return self._feed.pieces(unread)

    def _next(self) -> TarEntry | None:
        pax: dict[bytes, bytes] = {}
        long_name = long_link = b""
        is_started = False
        while True:
            self._header_at = self._feed.position
            block = self._feed.take(BLOCK)
            if not block or block == _ZEROS:
                if is_started:
                    raise TarFieldError("an extended header is followed by nothing")
                self._end(block)
                return None
            entry = _parse(block)
            kind = entry.kind
            if kind == _PAX:
                pax = fields.records(self._special(entry.size))
            elif kind == _LONG_NAME:
                long_name = fields.text(self._special(entry.size))
            elif kind == _LONG_LINK:
                long_link = fields.text(self._special(entry.size))
            elif kind == _GLOBAL_PAX:
                self._special(entry.size)
                continue
            else:
                if pax:
                    _overrule(entry, pax)
                entry.name = long_name or entry.name
                entry.link = long_link or entry.link
                self._begin(entry)
                return entry
            is_started = True

    def _special(self, size: int) -> bytes:
        if size > MOST_SPECIAL_BYTES:
            raise RefusedTar(
                f"holds an extended header of {size:,} bytes, which is more than {MOST_SPECIAL_BYTES:,}"
            )
        data = self._feed.take(size)
        if len(data) < size:
            raise MalformedTar("is cut off: it ends in an extended header")
        self._feed.skip(-size % BLOCK)
        return data

    def _begin(self, entry: TarEntry) -> None:
        """Find out how much content follows."""
        kind = entry.kind
        if kind in _WITHOUT_CONTENT:
            entry.size = 0
        elif kind in _FILES:
            # How folders were marked before there was a type for them.
            entry.kind = FOLDER if entry.name.endswith(b"/") else FILE
        elif kind == _SPARSE:
            raise _sparse(entry.name)
        else:
            raise RefusedTar(
                f"holds {spell(entry.name)}, which is neither a file nor a folder nor a link nor a device: "
                f"it is of the type {spell(kind)}"
            )
        self._unread = entry.size
        self._padding = -entry.size % BLOCK

    def _end(self, block: bytes) -> None:
        self.has_end = bool(block)
        for piece in self._feed.rest():
            if bytes(piece).strip(b"\0"):
                raise MalformedTar("continues after its end: concatenated archives are not accepted")


def _parse(block: bytes) -> TarEntry:
    (
        name,
        mode,
        uid,
        gid,
        size,
        mtime,
        checksum,
        kind,
        link,
        magic,
        version,
        _,
        major,
        minor,
        prefix,
        tail,
    ) = _HEADER.unpack(block)
    _check(block, checksum)
    entry = TarEntry(fields.text(name), kind, size=fields.number(size))
    if entry.size < 0:
        raise TarFieldError(f"{spell(entry.name)} has a negative size")
    if kind in _EXTENDED:
        return entry
    entry.mode = fields.number(mode)
    entry.uid = fields.number(uid)
    entry.gid = fields.number(gid)
    entry.mtime_ns = fields.number(mtime) * _NANOSECONDS
    entry.link = fields.text(link)
    if magic == b"ustar\0":
        if tail.endswith(b"tar\0") and version == b"00":
            prefix = prefix[:131]  # star keeps times in the rest
        if prefix[0]:
            entry.name = fields.text(prefix) + b"/" + entry.name
    if magic.startswith(b"ustar") and kind in (CHARACTER_DEVICE, BLOCK_DEVICE):
        entry.major, entry.minor = fields.number(major), fields.number(minor)
    return entry


def _check(block: bytes, checksum: bytes) -> None:
    blanked = sum(block) - sum(checksum) + 8 * 0x20
    wanted = fields.number(checksum)
    if wanted == blanked:
        return
    # Some old writers summed signed bytes.
    others = block[:148] + block[156:]
    if wanted != blanked - 256 * sum(byte >> 7 for byte in others):
        raise TarFieldError("the checksum of a header is wrong")


def _overrule(entry: TarEntry, pax: dict[bytes, bytes]) -> None:
    """Apply the values of a pax header that are not empty."""
    for key, value in pax.items():
        if key.startswith(b"GNU.sparse."):
            raise _sparse(pax.get(b"GNU.sparse.name", entry.name))
        if not value:
            continue
        if key.startswith(_XATTR):
            entry.xattrs[key[len(_XATTR) :]] = value
        elif key == b"path":
            entry.name = _whole(value)
        elif key == b"linkpath":
            entry.link = _whole(value)
        elif key == b"size":
            entry.size = fields.decimal(value)
        elif key == b"uid":
            entry.uid = fields.decimal(value)
        elif key == b"gid":
            entry.gid = fields.decimal(value)
        elif key == b"mtime":
            entry.mtime_ns = fields.nanoseconds(value)


def _whole(path: bytes) -> bytes:
    if b"\0" in path:
        raise TarFieldError(f"{spell(path)} holds a NUL")
    return path


def _sparse(name: bytes) -> RefusedTar:
    return RefusedTar(
        f"holds {spell(name)}, which is stored as a sparse file: make the archive without --sparse"
    )
