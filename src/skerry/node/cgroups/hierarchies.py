"""One mounted cgroup hierarchy, relative to our root group in it.

Everything below the root group is ours. Paths are relative to it: `` is the root group itself, `a/b` a cell,
`a/b/_init` a leaf. The membership trees and the limit controllers use this; it knows folders and files, not
their content.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Iterator

from skerry.model import errors
from skerry.node.cgroups.files import CgroupFiles

LEAF_MARK = "_"
# The file by which a single-threaded process moves itself in a v1 hierarchy. `cgroup.procs` does the same,
# but
# takes a lock on every fork of the machine and waits for an RCU grace period: 10 to 20 ms, against 0.05.
ENTER_V1 = "tasks"
_LEAF = re.compile(r"_[a-z0-9]{1,58}")
_RETRIES_S = (0.001, 0.002, 0.004, 0.008, 0.016)


class Hierarchy:
    """The groups of one mount."""

    def __init__(self, files: CgroupFiles, mount: str, root: str) -> None:
        self.files = files
        self.mount = mount
        self._home = f"{mount}/{root}"

    def path(self, path: str, file: str = "") -> str:
        group = f"{self._home}/{path}" if path else self._home
        return f"{group}/{file}" if file else group

    def within_mount(self, path: str) -> str:
        """The group's path as an OCI runtime expects it, relative to the mount."""
        return self.path(path).removeprefix(self.mount)

    def prepare(self) -> None:
        """Create the root group if it is missing."""
        try:
            self.files.mkdir(self._home)
        except FileExistsError:
            pass
        except OSError as error:
            raise errors.Unavailable(
                f"cannot create the cgroup {self._home}: {error.strerror}; run as root, or on a cgroup file "
                "system that may be written to"
            ) from error

    def check_has_no_processes(self) -> None:
        """Raises Unavailable if foreign processes are in the root group itself."""
        if self.read("", "cgroup.procs").strip():
            raise errors.Unavailable(
                f"processes that are not Skerry's are in the cgroup {self._home}: move them, or set "
                "node.cgroup_root to another name"
            )

    def make(self, path: str) -> None:
        self.files.mkdir(self.path(path))

    def exists(self, path: str) -> bool:
        return self.files.exists(self.path(path))

    def read(self, path: str, file: str) -> str:
        return self.files.read(self.path(path, file))

    def read_if_there(self, path: str, file: str) -> str:
        """The file's text, or an empty text if there is no such file."""
        try:
            return self.read(path, file)
        except FileNotFoundError:
            return ""

    def write(self, path: str, file: str, text: str) -> None:
        self.files.write(self.path(path, file), text)

    def below(self, path: str) -> list[str]:
        """Paths directly below, including leaves; none if `path` does not exist."""
        try:
            names = self.files.list(self.path(path))
        except FileNotFoundError:
            return []
        return [f"{path}/{name}" if path else name for name in names]

    def cells(self, path: str = "") -> Iterator[str]:
        """Every cell below, parents first."""
        for each in self.below(path):
            if not is_leaf(each):
                yield each
                yield from self.cells(each)

    def every(self, path: str) -> Iterator[str]:
        """Every group below, including leaves and their groups."""
        for each in self.below(path):
            yield each
            yield from self.every(each)

    def pids(self, path: str, *, below: bool = True) -> list[int]:
        """Processes in the group, and below it, by their pids on the host."""
        found = []
        try:
            found = [int(pid) for pid in self._members(path).split()]
        except FileNotFoundError:
            return []
        for each in self.below(path) if below else ():
            found += self.pids(each)
        return [pid for pid in found if pid]  # 0: not visible in this pid namespace

    def _members(self, path: str) -> str:
        try:
            return self.read(path, "cgroup.procs")
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # A group that somebody made threaded lists only threads; a signal to one goes to its process.
            return self.read(path, "cgroup.threads")

    def remove(self, path: str) -> None:
        """Remove a group with its leaves; does nothing if it does not exist. FailedPrecondition if it is in
        use."""
        if self._is_removed(path):
            return
        for each in self.below(path):
            if not is_leaf(each) and not is_leaf(path):
                raise errors.FailedPrecondition(f"cell {path} has the child cell {each}: free that first")
            self.remove(each)
        for pause in _RETRIES_S:  # the last process may have ended and still be in the group
            if self._is_removed(path):
                return
            time.sleep(pause)
        if not self._is_removed(path):
            raise errors.FailedPrecondition(
                f"processes are still in {path}: kill them and wait until they are gone",
                detail=f"{self.path(path)}: {self.pids(path)}",
            )

    def dispose(self) -> None:
        """Remove the root group if it is empty."""
        self._is_removed("")

    def _is_removed(self, path: str) -> bool:
        try:
            self.files.rmdir(self.path(path))
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return False
            raise
        return True


def check_leaf(name: str) -> None:
    """Raise for what cannot be the name of a leaf."""
    if not _LEAF.fullmatch(name):
        raise errors.Internal(f"the name of a leaf must begin with '_', not {name!r}")


def is_leaf(path: str) -> bool:
    """True for a leaf and for everything below one."""
    return any(part.startswith(LEAF_MARK) for part in path.split("/"))
