"""Chooses the cgroup backend of this machine by what is mounted, and prepares it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from skerry.model import errors
from skerry.node.cgroups import mounts, v1_limits, v2_limits
from skerry.node.cgroups.backends import CgroupBackend
from skerry.node.cgroups.files import CgroupFiles, KernelCgroupFiles
from skerry.node.cgroups.hierarchies import Hierarchy
from skerry.node.cgroups.mounts import CgroupMounts
from skerry.node.cgroups.protocol import Cgroups
from skerry.node.cgroups.v1_freezer import V1Freezer
from skerry.node.cgroups.v1_limits import V1Limits
from skerry.node.cgroups.v2_limits import V2Limits
from skerry.node.cgroups.v2_membership import V2Membership

MOUNTINFO = Path("/proc/self/mountinfo")
_CLONES_INTO_SINCE = (5, 7)


def detect(root_name: str, mountinfo: Path = MOUNTINFO) -> Cgroups:
    """The backend for this machine, ready for cells. Raises Unavailable with what is missing."""
    backend = choose(mounts.parse(mountinfo.read_text()), root_name, KernelCgroupFiles(), os.uname().release)
    backend.prepare()
    return backend


def choose(mounted: CgroupMounts, root_name: str, files: CgroupFiles, release: str) -> CgroupBackend:
    """The backend, not yet prepared."""
    clones_into = _version(release) >= _CLONES_INTO_SINCE
    in_v2: list[str] = []
    if mounted.unified is not None:
        in_v2 = files.read(f"{mounted.unified}/cgroup.controllers").split()
        if set(v2_limits.REQUIRED) <= set(in_v2):
            return make_unified(files, mounted.unified, root_name, clones_into=clones_into)
    missing = sorted(set(v1_limits.REQUIRED) - mounted.controllers.keys())
    if missing:
        raise errors.Unavailable(_missing(missing, mounted, in_v2))
    if mounted.unified is not None:
        return make_hybrid(files, mounted, root_name, clones_into=clones_into)
    if "freezer" not in mounted.controllers:
        raise errors.Unavailable("cells need cgroup v2, or else the v1 freezer: mount one of them")
    return make_legacy(files, mounted, root_name)


def make_unified(files: CgroupFiles, mount: str, root: str, *, clones_into: bool = True) -> CgroupBackend:
    hierarchy = Hierarchy(files, mount, root)
    tree = V2Membership(hierarchy, clones_into=clones_into)
    return CgroupBackend("unified", tree, V2Limits(hierarchy), limits_in_v2=True)


def make_hybrid(
    files: CgroupFiles, mounted: CgroupMounts, root: str, *, clones_into: bool = True
) -> CgroupBackend:
    assert mounted.unified is not None
    tree = V2Membership(Hierarchy(files, mounted.unified, root), clones_into=clones_into)
    limits = V1Limits(files, mounted.controllers, root, mounted.every_v1)
    return CgroupBackend("hybrid", tree, limits, limits_in_v2=False)


def make_legacy(files: CgroupFiles, mounted: CgroupMounts, root: str) -> CgroupBackend:
    mount = mounted.controllers["freezer"]
    other_mounts = [each for each in mounted.every_v1 if each != mount]
    limits = V1Limits(files, mounted.controllers, root, other_mounts)
    return CgroupBackend("legacy", V1Freezer(Hierarchy(files, mount, root)), limits, limits_in_v2=False)


def _missing(names: list[str], mounted: CgroupMounts, in_v2: list[str]) -> str:
    lacking = f"cells need the cgroup controllers {', '.join(v1_limits.REQUIRED)}"
    if mounted.unified is None and not mounted.controllers:
        return f"{lacking}, and no cgroup file system is mounted writable: mount cgroup2 on /sys/fs/cgroup"
    split = sorted(set(names) & set(in_v2))
    if split and len(split) < len(v1_limits.REQUIRED):
        return (
            f"{lacking} all in v2 or all in v1, and here {', '.join(split)} is in v2 and the others are not"
        )
    return (
        f"{lacking}, and {', '.join(names)} is missing: enable it in the kernel, for memory with "
        "`cgroup_enable=memory` on its command line"
    )


def _version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
