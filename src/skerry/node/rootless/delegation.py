"""The cgroup that this process was started in, if its subtree was delegated to this user.

Only cgroup v2 can be delegated safely. A service manager delegates by making the folder and its files
`cgroup.procs` and `cgroup.subtree_control` the user's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_FILES = ("cgroup.procs", "cgroup.subtree_control")


class DelegatedCgroup(NamedTuple):
    """A cgroup below which we may create others."""

    mount: str  # of cgroup v2
    path: str  # relative to the mount, without a leading slash
    controllers: frozenset[str]

    @property
    def folder(self) -> Path:
        return Path(self.mount, self.path)


def find(
    mount: str | None, cgroup_file: str, writable: Callable[[Path], bool] | None = None
) -> DelegatedCgroup | None:
    """`mount` is where cgroup v2 is, `cgroup_file` the content of /proc/self/cgroup."""
    path = own_path(cgroup_file)
    if mount is None or path is None:
        return None
    may_write = writable or _may_write
    folder = Path(mount, path)
    if not all(may_write(each) for each in (folder, *(folder / name for name in _FILES))):
        return None
    try:
        controllers = (folder / "cgroup.controllers").read_text().split()
    except OSError:
        return None
    return DelegatedCgroup(mount, path, frozenset(controllers))


def own_path(cgroup_file: str) -> str | None:
    """The path in v2, without a leading slash; None without v2, or outside of the visible part."""
    for line in cgroup_file.splitlines():
        if line.startswith("0::"):
            path = line.removeprefix("0::").strip("/")
            return None if path.startswith("..") else path
    return None


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK)
