"""Membership in the v2 tree: who is in a cell, and killing, freezing and watching all of it at once.

Used by the unified back end and by the hybrid one, whose v2 tree has no controllers but all of this.
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

    def make(self, place: str) -> None:
        self.hierarchy.make(place)
        try:
            self._check_type(place)
        except BaseException:
            self.hierarchy.remove(place)
            raise

    def _check_type(self, place: str) -> None:
        """A group below a threaded one can hold no processes, which would show only when one enters."""
        kind = self.hierarchy.read(place, "cgroup.type").strip()
        if kind != "domain":
            raise errors.Unavailable(
                f"the cgroup {self.hierarchy.path(place)} is {kind!r} and not a plain domain, so no process "
                "can be put there: somebody made a group above it threaded"
            )

    def enter(self, place: str) -> tuple[int | None, tuple[int, ...]]:
        files = self.hierarchy.files
        if self._clones_into:
            return files.open_folder(self.hierarchy.path(place)), ()
        return None, (files.open_to_write(self.hierarchy.path(place, "cgroup.procs")),)

    def kill(self, place: str) -> None:
        try:
            self.hierarchy.write(place, "cgroup.kill", "1")
        except FileNotFoundError:
            if self.hierarchy.exists(place):  # a kernel before 5.14
                self._kill_by_signals(place)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # a group made threaded
                raise
            self._kill_by_signals(place)

    def _kill_by_signals(self, place: str) -> None:
        # Frozen processes do not fork but do die. A kernel before 5.2 cannot freeze and takes more rounds.
        was_frozen = self.hierarchy.read_if_there(place, "cgroup.freeze").strip() == "1"
        with contextlib.suppress(FileNotFoundError):
            self.hierarchy.write(place, "cgroup.freeze", "1")
        try:
            killing.kill_all(lambda: self.hierarchy.pids(place))
        finally:
            with contextlib.suppress(FileNotFoundError):
                if not was_frozen:
                    self.hierarchy.write(place, "cgroup.freeze", "0")

    async def emptied(self, place: str, *, within_s: float) -> bool:
        try:
            watched = self.hierarchy.files.open_to_watch(self.hierarchy.path(place, "cgroup.events"))
        except FileNotFoundError:
            return True
        return await waiting.until(lambda: self._is_empty(place), watched, within_s=within_s)

    def _is_empty(self, place: str) -> bool:
        events = self.hierarchy.read_if_there(place, "cgroup.events").splitlines()
        return "populated 1" not in events

    def freeze(self, place: str) -> None:
        self._write_freeze(place, "1")

    def thaw(self, place: str) -> None:
        self._write_freeze(place, "0")

    def _write_freeze(self, place: str, text: str) -> None:
        try:
            self.hierarchy.write(place, "cgroup.freeze", text)
        except FileNotFoundError:
            if not self.hierarchy.exists(place):
                raise
            raise errors.Unavailable("this kernel cannot freeze cgroups: Linux 5.2 or newer can") from None
