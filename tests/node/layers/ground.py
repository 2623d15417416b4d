"""Layers made by hand, unpacked for real, and trees told in full so that they can be compared."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from skerry.model.ids import Digest
from skerry.node.layers.unpacker_client import LayerUnpacker, UnpackedLayer, UnpackLimits

LIMITS = UnpackLimits(bytes=1 << 30, files=100_000)
MTIME = 1_600_000_000

needs_root = pytest.mark.root(tries=1)


@dataclass(frozen=True)
class Member:
    """One member of a tar, as tarfile writes it."""

    info: tarfile.TarInfo
    data: bytes = b""


def member(
    path: str,
    kind: bytes = tarfile.REGTYPE,
    data: bytes = b"",
    *,
    mode: int | None = None,
    uid: int = 0,
    gid: int = 0,
    mtime: float = MTIME,
    link: str = "",
    device: tuple[int, int] = (0, 0),
    xattrs: Mapping[str, bytes] | None = None,
    pax: Mapping[str, str] | None = None,
) -> Member:
    info = tarfile.TarInfo(path)
    info.type, info.uid, info.gid, info.mtime, info.linkname = kind, uid, gid, mtime, link
    info.mode = (
        mode if mode is not None else {tarfile.DIRTYPE: 0o755, tarfile.SYMTYPE: 0o777}.get(kind, 0o644)
    )
    info.size = len(data)
    info.devmajor, info.devminor = device
    info.pax_headers = {
        **(pax or {}),
        **{
            f"SCHILY.xattr.{name}": value.decode("utf-8", "surrogateescape")
            for name, value in (xattrs or {}).items()
        },
    }
    return Member(info, data)


def file(path: str, data: bytes = b"data", **more: object) -> Member:
    return member(path, tarfile.REGTYPE, data, **more)  # type: ignore[arg-type]


def folder(path: str, mode: int = 0o755, **more: object) -> Member:
    return member(path, tarfile.DIRTYPE, mode=mode, **more)  # type: ignore[arg-type]


def symlink(path: str, target: str, **more: object) -> Member:
    return member(path, tarfile.SYMTYPE, link=target, **more)  # type: ignore[arg-type]


def hard_link(path: str, target: str) -> Member:
    return member(path, tarfile.LNKTYPE, link=target)


def device(path: str, major: int, minor: int, kind: bytes = tarfile.CHRTYPE, **more: object) -> Member:
    return member(path, kind, device=(major, minor), **more)  # type: ignore[arg-type]


def pack(*members: Member, format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, errors="surrogateescape") as archive:
        for each in members:
            archive.addfile(each.info, io.BytesIO(each.data))
    return buffer.getvalue()


def digest_of(data: bytes) -> Digest:
    return Digest("sha256:" + hashlib.sha256(data).hexdigest())


async def unpack(
    data: bytes,
    target: Path,
    *,
    diff_id: Digest | None = None,
    limits: UnpackLimits = LIMITS,
    unpacker: LayerUnpacker | None = None,
) -> UnpackedLayer:
    """Unpack the bytes of a layer into the new folder `target`, by way of a file beside it."""
    source = target.with_name(f"{target.name}.layer")
    source.write_bytes(data)
    target.mkdir()
    try:
        return await (unpacker or LayerUnpacker()).unpack(source, target, diff_id=diff_id, limits=limits)
    finally:
        source.unlink()


class Thing(NamedTuple):
    """All that is to be known of one path, times of access and change and the inode's number apart."""

    kind: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    content: str  # a digest, or where a link leads
    device: tuple[int, int]
    links: int  # of what is no folder
    xattrs: tuple[tuple[str, bytes], ...]


def look(root: Path) -> dict[str, Thing]:
    """Every path below `root`, and `.` itself, with what is there."""
    found = {".": _thing(root)}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            found[str(path.relative_to(root))] = _thing(path)
    return found


def _thing(path: Path) -> Thing:
    at = path.lstat()
    kind = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "folder",
        stat.S_IFLNK: "symlink",
        stat.S_IFCHR: "character device",
        stat.S_IFBLK: "block device",
        stat.S_IFIFO: "fifo",
    }[stat.S_IFMT(at.st_mode)]
    content = ""
    if kind == "file":
        content = hashlib.sha256(path.read_bytes()).hexdigest()
    elif kind == "symlink":
        content = os.readlink(path)
    number = (os.major(at.st_rdev), os.minor(at.st_rdev)) if "device" in kind else (0, 0)
    xattrs = tuple(
        (name, os.getxattr(path, name, follow_symlinks=False))
        for name in sorted(os.listxattr(path, follow_symlinks=False))
    )
    links = 0 if kind == "folder" else at.st_nlink
    return Thing(
        kind, stat.S_IMODE(at.st_mode), at.st_uid, at.st_gid, at.st_mtime_ns, content, number, links, xattrs
    )


@contextlib.contextmanager
def stacked(layers: list[Path], place: Path) -> Iterator[Path]:
    """The layers, lowest first, as a container would see them."""
    place.mkdir()
    empty = place.with_name(f"{place.name}.empty")
    empty.mkdir()  # overlayfs wants two at least
    lower = ":".join(map(str, [*reversed(layers), empty]))
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", f"ro,lowerdir={lower}", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
