"""Membership in the v2 tree: lists, kills, freezes and watches all processes of a cell.

Used by the unified backend and by the hybrid one, whose v2 tree has no controllers.
"""

from __future__ import annotations

import contextlib
import errno

from skerry.model import errors
from skerry.node.cgroups import killing, waiting
from skerry.node.cgroups.hierarchies import Hierarchy


class V2Membership:
    """Processes by v2 group."""

    def __init__(self, hierarchy: Hierarchy, *, clones_into: bool) -> None:
        self.hierarchy = hierarchy
        self._clones_into = clones_into

    def prepare(self) -> None:
        self.hierarchy.prepare()
        self._check_type("")
        self.hierarchy.check_has_no_processes()

    def make(self, path: str) -> None:
        self.hierarchy.make(path)
        try:
            self._check_type(path)
        except BaseException:
            self.hierarchy.remove(path)
            raise

    def _check_type(self, path: str) -> None:
        """Raise if the group is below a threaded one: it can contain no processes, which would fail only
        later."""
        kind = self.hierarchy.read(path, "cgroup.type").strip()
        if kind != "domain":
            raise errors.Unavailable(
                f"the cgroup {self.hierarchy.path(path)} is {kind!r} and not a domain, so no process "
                "can be put there: somebody made a group above it threaded"
            )

    def enter(self, path: str) -> tuple[int | None, tuple[int, ...]]:
        files = self.hierarchy.files
        if self._clones_into:
            return files.open_folder(self.hierarchy.path(path)), ()
        return None, (files.open_to_write(self.hierarchy.path(path, "cgroup.procs")),)

    def kill(self, path: str) -> None:
        try:
            self.hierarchy.write(path, "cgroup.kill", "1")
        except FileNotFoundError:
            if self.hierarchy.exists(path):  # a kernel before 5.14
                self._kill_by_signals(path)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # a threaded group
                raise
            self._kill_by_signals(path)

    def _kill_by_signals(self, path: str) -> None:
        # Frozen processes do not fork but can be killed. A kernel before 5.2 cannot freeze and needs more
        # rounds.
        was_frozen = self.hierarchy.read_if_there(path, "cgroup.freeze").strip() == "1"
        with contextlib.suppress(FileNotFoundError):
            self.hierarchy.write(path, "cgroup.freeze", "1")
        try:
            killing.kill_all(lambda: self.hierarchy.pids(path))
        finally:
            with contextlib.suppress(FileNotFoundError):
                if not was_frozen:
                    self.hierarchy.write(path, "cgroup.freeze", "0")

    async def emptied(self, path: str, *, within_s: float) -> bool:
        try:
            watched = self.hierarchy.files.open_to_watch(self.hierarchy.path(path, "cgroup.events"))
        except FileNotFoundError:
            return True
        return await waiting.until(lambda: self._is_empty(path), watched, within_s=within_s)

    def _is_empty(self, path: str) -> bool:
        events = self.hierarchy.read_if_there(path, "cgroup.events").splitlines()
        return "populated 1" not in events

    def freeze(self, path: str) -> None:
        self._write_freeze(path, "1")

    def thaw(self, path: str) -> None:
        self._write_freeze(path, "0")

    def _write_freeze(self, path: str, text: str) -> None:
        try:
            self.hierarchy.write(path, "cgroup.freeze", text)
        except FileNotFoundError:
            if not self.hierarchy.exists(path):
                raise
            raise errors.Unavailable("this kernel cannot freeze cgroups: Linux 5.2 or newer can") from None
