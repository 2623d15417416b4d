"""Mount points of cgroup hierarchies, from the text of `/proc/self/mountinfo`. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

CONTROLLERS = frozenset({"blkio", "cpu", "cpuacct", "cpuset", "freezer", "memory", "pids"})
_KINDS = frozenset({"cgroup", "cgroup2"})
_ESCAPE = re.compile(r"\\([0-7]{3})")


class CgroupMounts(NamedTuple):
    """Writable mounts that no later mount hides."""

    unified: str | None  # the v2 tree
    controllers: dict[str, str]  # mount point by v1 controller; several may share one
    every_v1: tuple[str, ...] = ()  # all v1 mount points, also of controllers that cells do not use


def parse(mountinfo: str) -> CgroupMounts:
    """The usable mounts."""
    mounts: list[tuple[str, str, frozenset[str]]] = []  # mount point, file system, options
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if not dash or len(fields) < 6 or len(kinds) < 3:
            continue
        point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
        mounts = [entry for entry in mounts if not _hides(point, entry[0])]
        if kinds[0] not in _KINDS:
            continue  # it hides others, and is of no use itself; a node may have thousands
        # A mount, or its whole file system, may be read-only; the two have separate lists of options.
        own, whole = fields[5].split(","), kinds[2].split(",")
        mounts.append((point, kinds[0], frozenset(whole) | (frozenset(own) & {"ro"})))
    unified = next(
        (point for point, kind, options in mounts if kind == "cgroup2" and "ro" not in options), None
    )
    controllers: dict[str, str] = {}
    every_v1 = [
        (point, options) for point, kind, options in mounts if kind == "cgroup" and "ro" not in options
    ]
    for point, options in every_v1:
        for name in CONTROLLERS & options:
            controllers.setdefault(name, point)
    return CgroupMounts(unified, controllers, tuple(point for point, _ in every_v1))


def _hides(point: str, earlier: str) -> bool:
    return earlier == point or earlier.startswith(point.rstrip("/") + "/")
