"""What a process of a cell gets where there are no cgroups: a tag to find it by, and limits of its own.

The tag is a hard limit that descendants inherit and cannot raise, of a resource that Linux does not count.
Used by the launcher and its children, which have the standard library alone.
"""

from __future__ import annotations

import resource
from typing import Final, NamedTuple

TAG_LIMIT: Final = 10  # RLIMIT_LOCKS


class ProcessMarks(NamedTuple):
    """For one process and its descendants."""

    tag: int = 0  # 0: none
    processes: int = 0  # that its user may have; 0: any number
    niceness: int = 0
    cpus: tuple[int, ...] = ()  # none: all

    def set_tag(self) -> None:
        """Of this process, if there is one."""
        if not self.tag:
            return
        resource.setrlimit(TAG_LIMIT, (self.tag, self.tag))


def decoded(marks: list[object] | None) -> ProcessMarks | None:
    """From a message, in which it is a list."""
    return None if marks is None else ProcessMarks(*marks)  # type: ignore[arg-type]
