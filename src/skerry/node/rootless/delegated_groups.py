"""Groups of cells in a cgroup that a service manager has delegated to an ordinary user.

    DELEGATED/skerry-agent     the agent, its launchers, and the holder of the namespace
    DELEGATED/skerry-KEY       the root group of the cells, as for root below the mount
    cgroup.json                in the data folder: where that is, for the next agent

Only groups without processes of their own delegate controllers, so what was started in the delegated cgroup
is moved to a leaf. The next agent may be started in another cgroup of the same user: cells stay where they
are, and it joins them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Final

import msgspec

from skerry.kit import files as data_files
from skerry.model import errors
from skerry.node.cgroups.backends import CgroupBackend
from skerry.node.cgroups.files import CgroupFiles
from skerry.node.cgroups.hierarchies import Hierarchy
from skerry.node.cgroups.v2_limits import V2Limits
from skerry.node.cgroups.v2_membership import V2Membership
from skerry.node.rootless import decisions
from skerry.node.rootless.delegation import DelegatedCgroup

RECORD: Final = "cgroup.json"
_AGENT: Final = "skerry-agent"
_ROUNDS: Final = 100


class GroupRecord(msgspec.Struct, frozen=True):
    """Where the cells of a data folder are."""

    boot: str
    cgroup: DelegatedCgroup


def choose(
    found: DelegatedCgroup | None, recorded: GroupRecord | None, boot: str, *, has_cells: bool
) -> DelegatedCgroup | None:
    """The delegated cgroup to use: that of the agent before, while the cells of this boot are in it
    (`has_cells`), else the one that this process was started in."""
    if recorded is not None and recorded.boot == boot and has_cells:
        return recorded.cgroup
    return found


def make(files: CgroupFiles, cgroup: DelegatedCgroup, name: str) -> CgroupBackend:
    """The groups of cells below `cgroup`, with `name` as their root group; not prepared."""
    hierarchy = Hierarchy(files, cgroup.mount, f"{cgroup.path}/{name}")
    controllers = decisions.usable_controllers(cgroup.controllers)
    limits = V2Limits(hierarchy, top=str(cgroup.folder), controllers=controllers)
    # Service managers that delegate need a kernel that is newer than 5.7, which can clone into a group.
    return CgroupBackend("unified", V2Membership(hierarchy, clones_into=True), limits, limits_in_v2=True)


def open_groups(
    files: CgroupFiles, found: DelegatedCgroup | None, name: str, folder: Path, boot: str
) -> CgroupBackend | None:
    """The groups of the cells of the data folder `folder`, with this process beside them; None if nothing is
    delegated. Raises Unavailable."""
    recorded = _read(folder)
    has_cells = recorded is not None and files.exists(f"{recorded.cgroup.folder}/{name}")
    cgroup = choose(found, recorded, boot, has_cells=has_cells)
    if cgroup is None or not decisions.usable_controllers(cgroup.controllers):
        return None
    join(files, cgroup, os.getpid())
    groups = make(files, cgroup, name)
    groups.prepare()
    record = msgspec.json.encode(GroupRecord(boot, cgroup))
    data_files.write_atomically(folder / RECORD, record, data_files.PRIVATE)
    return groups


def join(files: CgroupFiles, cgroup: DelegatedCgroup, pid: int) -> None:
    """Move `pid`, and what is in the delegated cgroup itself, to the leaf of agents. Raises Unavailable."""
    leaf = f"{cgroup.folder}/{_AGENT}"
    try:
        with contextlib.suppress(FileExistsError):
            files.mkdir(leaf)
        files.write(f"{leaf}/cgroup.procs", str(pid))
        for _ in range(_ROUNDS):
            left = files.read(f"{cgroup.folder}/cgroup.procs").split()
            if not left:
                return
            for each in left:
                _move(files, leaf, each)
    except OSError as error:
        raise errors.Unavailable(
            f"cells of this node are in the cgroup {cgroup.folder}, and this process may not join them "
            f"({error.strerror}): start it in the same way as the one before, or end what runs there"
        ) from error
    raise errors.Unavailable(f"processes are started again and again in the cgroup {cgroup.folder}")


def _move(files: CgroupFiles, leaf: str, pid: str) -> None:
    try:
        files.write(f"{leaf}/cgroup.procs", pid)
    except OSError as error:
        if error.errno != errno.ESRCH:  # it has ended
            raise


def _read(folder: Path) -> GroupRecord | None:
    try:
        return msgspec.json.decode((folder / RECORD).read_bytes(), type=GroupRecord)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
