"""Archives of code, as people and mischief-makers send them; written by the standard library."""

from __future__ import annotations

import io
import tarfile

HELLO = "def handler(params, context):\n    return 'hello'\n"


def member(
    name: str,
    content: str | bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
    mode: int = 0o600,
    mtime: float = 1_600_000_000,
) -> tuple[tarfile.TarInfo, bytes]:
    data = content.encode() if isinstance(content, str) else content
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode, info.mtime = kind, link, mode, mtime
    info.uid = info.gid = 4711
    info.size = len(data)
    return info, data


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.DIRTYPE, mode=0o700)


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.SYMTYPE, link=target)


def tar(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w", format=format) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return into.getvalue()


def of(**files: str) -> bytes:
    """An archive of Python modules."""
    return tar(*(member(f"{name}.py", content) for name, content in files.items()))
