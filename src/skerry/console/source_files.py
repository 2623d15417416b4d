"""The code of a function as text: the files of its archive that are text, within limits. Pure.

The archive was checked when it was registered; here it is only read, and nothing is unpacked.
"""

from __future__ import annotations

import msgspec

from skerry.functions.registry import code_archives
from skerry.kit.tar import reader as tar_reader

MAX_FILES = 20
MAX_FILE_BYTES = 64 * 1024
MAX_ALL_BYTES = 256 * 1024


class SourceFile(msgspec.Struct, frozen=True):
    """A file: its text, or why that is not shown."""

    name: str
    size: int
    text: str = ""
    hidden: str = ""


class SourceTree(msgspec.Struct, frozen=True):
    """The files that are shown, and how many are not."""

    files: tuple[SourceFile, ...]
    more: int
    size: int  # of all, bytes


def read_source(archive: bytes) -> SourceTree:
    """The first files, in the order of their names. Raises `Invalid` if it is no archive."""
    found = sorted(
        (one for one in code_archives.members(archive) if one.kind == tar_reader.FILE),
        key=lambda one: (one.name.count("/"), one.name),
    )
    files, left = [], MAX_ALL_BYTES
    for member in found[:MAX_FILES]:
        size = len(member.content)
        if size > min(MAX_FILE_BYTES, left):
            files.append(SourceFile(member.name, size, hidden="too long to be shown here"))
            continue
        text = _text(bytes(member.content))
        if text is None:
            files.append(SourceFile(member.name, size, hidden="no text"))
            continue
        left -= size
        files.append(SourceFile(member.name, size, text))
    return SourceTree(tuple(files), max(0, len(found) - MAX_FILES), sum(len(one.content) for one in found))


def _text(content: bytes) -> str | None:
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
