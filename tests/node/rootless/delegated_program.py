"""What an agent does with a delegated cgroup, as a program of an ordinary user in its namespace.

    delegated_program.py FOLDER

It prints one line of JSON. Where the machine has no controllers in v2, the membership alone is real.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from skerry.model.cells import CellLimits
from skerry.model.ids import CellName
from skerry.node.cgroups import mounts
from skerry.node.cgroups.detection import MOUNTINFO
from skerry.node.cgroups.files import KernelCgroupFiles
from skerry.node.rootless import delegated_groups, delegation, holder

A, LEAF = CellName("a"), "_x1"


def main(folder: Path) -> None:
    marker = holder.enter(folder)
    unified = mounts.parse(MOUNTINFO.read_text()).unified
    found = delegation.find(unified, Path("/proc/self/cgroup").read_text())
    assert found is not None
    files = KernelCgroupFiles()
    delegated_groups.join(files, found, os.getpid())
    joined = delegation.own_path(Path("/proc/self/cgroup").read_text())
    groups = delegated_groups.make(files, found, "skerry-test")
    groups.prepare()
    groups.create(A, CellLimits())
    groups.add_leaf(A, LEAF)
    child = os.fork()
    if child == 0:
        os.execvp("sh", ["sh", "-c", "sleep 1000 & sleep 1000"])
    files.write(f"{found.folder}/skerry-test/a/{LEAF}/cgroup.procs", str(child))
    inside = groups.pids(A, LEAF)
    groups.kill(A)
    os.waitpid(child, 0)
    emptied = asyncio.run(groups.emptied(A, within_s=10))
    groups.remove(A)
    groups.dispose()
    answer = {
        "joined": joined,
        "is_inside": child in inside,
        "emptied": emptied,
        "left": [path.name for path in found.folder.iterdir() if path.is_dir()],
        "ended": holder.end_if_unused(folder, marker),
    }
    print(json.dumps(answer))  # noqa: T201 - for the test that started this


if __name__ == "__main__":
    main(Path(sys.argv[1]))
