"""A reader of tar archives that strangers send: plain tar, as serverledge-cli, Go, GNU and Python write it.

The standard library's reader is not used: in the Pythons we run on, an archive with a negative size makes it
loop for ever, and one that is damaged in the middle reads as a short one. Here every byte is looked at once,
and what is not understood is refused by name. Pure: bytes in, members out; whether a member may become a file
is `skerry.functions.registry.code_archives`' business. Layers of images come as streams and have a reader of
their own.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

import msgspec

from skerry.model import errors

BLOCK: Final = 512
_END: Final = bytes(BLOCK)
_CHECKSUM: Final = slice(148, 156)
_MOST_NUMBER: Final = 2**62  # of sizes and times; far beyond any, and no arithmetic grows with it
_PAX, _GLOBAL_PAX, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_COMPRESSED: Final = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
}


class TarEntryKind(enum.Enum):
    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symlink"
    HARD_LINK = "hard link"


_KINDS: Final = {
    b"0": TarEntryKind.FILE,
    b"\0": TarEntryKind.FILE,
    b"7": TarEntryKind.FILE,
    b"5": TarEntryKind.FOLDER,
    b"2": TarEntryKind.SYMLINK,
    b"1": TarEntryKind.HARD_LINK,
}
_REFUSED: Final = {
    b"3": "a device",
    b"4": "a device",
    b"6": "a named pipe",
    b"S": "a sparse file: make the archive without --sparse",
}


class TarMember(msgspec.Struct, frozen=True):
    """One thing in an archive; `content` is a part of the archive, not a copy of it."""

    name: str
    kind: TarEntryKind
    is_executable: bool
    mtime_s: float
    link: str
    content: memoryview


def read(data: bytes) -> Iterator[TarMember]:
    """The members of the archive, in its order. Raises `Invalid` where it is not one."""
    if not data:
        raise _invalid("is empty; send a tar archive, base64-encoded")
    for magic, name in _COMPRESSED.items():
        if data.startswith(magic):
            raise _invalid(f"is {name}; send an uncompressed tar archive")
    return _Reader(data).members()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    def members(self) -> Iterator[TarMember]:
        while (member := self._next()) is not None:
            yield member

    def _next(self) -> TarMember | None:
        name = link = b""
        pax: dict[bytes, bytes] = {}
        while True:
            start = self._at
            header = bytes(self._data[start : start + BLOCK])
            if not header or header == _END:
                self._check_end()
                return None
            _check_header(header, start)
            kind = header[156:157]
            size = _number(header[124:136], "size")
            if kind in (_PAX, _GLOBAL_PAX, _LONG_NAME, _LONG_LINK):
                special = bytes(self._content(size))
                if kind == _PAX:
                    pax = _records(special)
                elif kind == _LONG_NAME:
                    name = _text(special)
                elif kind == _LONG_LINK:
                    link = _text(special)
                continue
            return self._member(
                header, kind, size, name or _name(header), link or _text(header[157:257]), pax
            )

    def _member(
        self, header: bytes, type_: bytes, size: int, name: bytes, link: bytes, pax: dict[bytes, bytes]
    ) -> TarMember:
        spelled = _decode(pax.get(b"path") or name)
        kind = _KINDS.get(type_)
        if type_ in _REFUSED or any(key.startswith(b"GNU.sparse") for key in pax):
            raise _invalid(f"holds {spelled!r}, which is {_REFUSED.get(type_, _REFUSED[b'S'])}")
        if kind is None:
            raise _invalid(f"holds {spelled!r}, which is neither a file nor a folder nor a link")
        if kind is TarEntryKind.FILE and spelled.endswith("/"):
            kind = TarEntryKind.FOLDER  # how folders were told from files before there was a type for them
        if b"size" in pax:
            size = _decimal(pax[b"size"])
        return TarMember(
            spelled,
            kind,
            is_executable=bool(_number(header[100:108], "mode") & 0o111),
            mtime_s=_seconds(pax[b"mtime"]) if b"mtime" in pax else _number(header[136:148], "time"),
            link=_decode(pax.get(b"linkpath") or link),
            content=self._content(size if kind is TarEntryKind.FILE else 0),
        )

    def _content(self, size: int) -> memoryview:
        """What follows the header; afterwards we are at the next."""
        start = self._at + BLOCK
        if start + size > len(self._data):
            raise _invalid("is cut off; send all of it")
        self._at = start + size + -size % BLOCK
        return self._data[start : start + size]

    def _check_end(self) -> None:
        rest = bytes(self._data[self._at :])
        if rest.count(0) != len(rest):
            raise _invalid("goes on behind its end; several archives in a row are not taken")


def _check_header(header: bytes, start: int) -> None:
    if len(header) < BLOCK:
        raise _invalid("is cut off, or no tar archive" if start == 0 else "is cut off; send all of it")
    wanted = _octal(header[_CHECKSUM])
    if wanted != sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" "):
        raise _invalid("is no tar archive" if start == 0 else f"is damaged at byte {start}")


def _name(header: bytes) -> bytes:
    name = _text(header[:100])
    prefix = _text(header[345:500])
    return prefix + b"/" + name if header[257:263] == b"ustar\0" and prefix else name


def _records(data: bytes) -> dict[bytes, bytes]:
    """`LENGTH KEY=VALUE\\n`, one after the other."""
    records = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 20)
        end = at + _decimal(data[at:space]) if space > at else 0
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end <= space or data[end - 1 : end] != b"\n" or not equals:
            raise _invalid("has an extended header that cannot be read")
        records[key] = value
        at = end
    return records


def _number(field: bytes, what: str) -> int:
    """Octal digits, or base 256 where the first bit is set; none of ours may be negative."""
    is_binary = field[0] & 0x80
    number = int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1)) if is_binary else _octal(field)
    if not 0 <= number <= _MOST_NUMBER:
        raise _invalid(f"has a header whose {what} cannot be")
    return number


def _octal(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not digits:
        return 0
    if len(digits.translate(None, b"01234567")):
        raise _invalid("is no tar archive, or damaged: a number in a header is none")
    return int(digits, 8)


def _decimal(field: bytes) -> int:
    if not field.isdigit() or len(field) > 18:
        raise _invalid("has an extended header with a number that is none")
    return int(field)


def _seconds(field: bytes) -> float:
    whole, _, fraction = field.lstrip(b"-").partition(b".")
    return 0.0 if field.startswith(b"-") else float(_decimal(whole)) + float(b"0." + (fraction[:9] or b"0"))


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _decode(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        raise _invalid(f"holds the name {name[:100]!r}, which is not UTF-8") from error
    if "\0" in text:
        raise _invalid(f"holds the name {text[:100]!r}, with a NUL in it")
    return text


def _invalid(what: str) -> errors.Invalid:
    return errors.Invalid(f"the code {what}", field="code")
