"""One mounted hierarchy of groups, seen from our root group in it.

Everything below the root group is ours. Places are relative to it: `` is the root group itself, `a/b` a cell,
`a/b/_init` a leaf. The membership trees and the controllers are built on this; it knows folders and files,
not what is in them.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator

from skerry.model import errors
from skerry.node.cgroups.files import CgroupFiles

LEAF_MARK = "_"
# Where a process with one thread moves itself in a v1 hierarchy. `cgroup.procs` does the same, but takes a
# lock on every fork of the machine and waits out an RCU grace period for it: 10 to 20 ms, against 0.05.
ENTER_V1 = "tasks"
_RETRIES_S = (0.001, 0.002, 0.004, 0.008, 0.016)


class Hierarchy:
    """Groups of one mount."""

    def __init__(self, files: CgroupFiles, mount: str, root: str) -> None:
        self.files = files
        self.mount = mount
        self._home = f"{mount}/{root}"

    def path(self, place: str, file: str = "") -> str:
        group = f"{self._home}/{place}" if place else self._home
        return f"{group}/{file}" if file else group

    def within_mount(self, place: str) -> str:
        """The group's path as a runtime is told it, which knows the mounts itself."""
        return self.path(place).removeprefix(self.mount)

    def prepare(self) -> None:
        """Make the root group if it is not there."""
        try:
            self.files.mkdir(self._home)
        except FileExistsError:
            pass
        except OSError as error:
            raise errors.Unavailable(
                f"cannot make the cgroup {self._home}: {error.strerror}; run as root, or on a cgroup file "
                "system that may be written to"
            ) from error

    def check_has_no_processes(self) -> None:
        """Raises Unavailable if somebody's processes sit in the root group itself."""
        if self.read("", "cgroup.procs").strip():
            raise errors.Unavailable(
                f"processes that are not Skerry's sit in the cgroup {self._home}: move them, or set "
                "node.cgroup_root to another name"
            )

    def make(self, place: str) -> None:
        self.files.mkdir(self.path(place))

    def exists(self, place: str) -> bool:
        return self.files.exists(self.path(place))

    def read(self, place: str, file: str) -> str:
        return self.files.read(self.path(place, file))

    def read_if_there(self, place: str, file: str) -> str:
        """The file's text, or nothing if there is no such file."""
        try:
            return self.read(place, file)
        except FileNotFoundError:
            return ""

    def write(self, place: str, file: str, text: str) -> None:
        self.files.write(self.path(place, file), text)

    def below(self, place: str) -> list[str]:
        """Places right below, leaves among them; none if `place` is not there."""
        try:
            names = self.files.list(self.path(place))
        except FileNotFoundError:
            return []
        return [f"{place}/{name}" if place else name for name in names]

    def cells(self, place: str = "") -> Iterator[str]:
        """Every group below that is not a leaf, parents first."""
        for each in self.below(place):
            if not is_leaf(each):
                yield each
                yield from self.cells(each)

    def every(self, place: str) -> Iterator[str]:
        """Every group below, leaves and what is in them too."""
        for each in self.below(place):
            yield each
            yield from self.every(each)

    def pids(self, place: str, *, below: bool = True) -> list[int]:
        """Processes in the group, and below it, as the host counts them."""
        found = []
        try:
            found = [int(word) for word in self._members(place).split()]
        except FileNotFoundError:
            return []
        for each in self.below(place) if below else ():
            found += self.pids(each)
        return [pid for pid in found if pid]  # 0 stands for one that this pid namespace cannot see

    def _members(self, place: str) -> str:
        try:
            return self.read(place, "cgroup.procs")
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            # A group that somebody made threaded lists only threads; a signal to one is one to its process.
            return self.read(place, "cgroup.threads")

    def remove(self, place: str) -> None:
        """Remove a group and the leaves in it; nothing to do if it is gone. FailedPrecondition if it is in
        use."""
        if self._is_removed(place):
            return
        for each in self.below(place):
            if not is_leaf(each) and not is_leaf(place):
                raise errors.FailedPrecondition(f"cell {place} has the child cell {each}: free that first")
            self.remove(each)
        for pause in _RETRIES_S:  # the last process may have ended and not be taken out of the group yet
            if self._is_removed(place):
                return
            time.sleep(pause)
        if not self._is_removed(place):
            raise errors.FailedPrecondition(
                f"processes are still in {place}: kill them and wait until they are gone",
                detail=f"{self.path(place)}: {self.pids(place)}",
            )

    def dispose(self) -> None:
        """Remove the root group if nothing is in it."""
        self._is_removed("")

    def _is_removed(self, place: str) -> bool:
        try:
            self.files.rmdir(self.path(place))
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                return False
            raise
        return True


def is_leaf(place: str) -> bool:
    """True for a leaf and for everything below one."""
    return any(part.startswith(LEAF_MARK) for part in place.split("/"))
