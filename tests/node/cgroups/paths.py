"""Back ends for tests, each with a root group of its own, and processes started in them."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from skerry.model.ids import CellName
from skerry.node.cgroups import detection, mounts
from skerry.node.cgroups.backends import CgroupBackend
from skerry.node.cgroups.files import KernelCgroupFiles
from tests.support.waiting import PATIENCE_S

MOUNTED = mounts.parse(Path("/proc/self/mountinfo").read_text())
REQUIRED = {"cpu", "cpuset", "memory", "pids", "freezer"}
HAS_HYBRID = MOUNTED.unified is not None and MOUNTED.controllers.keys() >= REQUIRED
_numbers = itertools.count()


class OldKernelFiles(KernelCgroupFiles):
    """A kernel before 5.14: v2 groups cannot be killed in one write."""

    def write(self, path: str, text: str) -> None:
        if path.endswith("/cgroup.kill"):
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        super().write(path, text)


def root_name() -> str:
    return f"skt-cg-{os.getpid()}-{next(_numbers)}"


def groups_of(root: str) -> list[str]:
    """Every folder that a root group has in the hierarchies of this machine."""
    points = {MOUNTED.unified, *MOUNTED.every_v1} - {None}
    return sorted(
        folder for point in points for folder, _, _ in os.walk(f"{point}/{root}", onerror=lambda _: None)
    )


def make_real(kind: str, root: str) -> CgroupBackend:
    match kind:
        case "hybrid":
            return detection.make_hybrid(KernelCgroupFiles(), MOUNTED, root)
        case "hybrid without cgroup.kill":
            return detection.make_hybrid(OldKernelFiles(), MOUNTED, root, clones_into=False)
        case "legacy":
            return detection.make_legacy(KernelCgroupFiles(), MOUNTED, root)
        case _:
            raise ValueError(kind)


@contextlib.contextmanager
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is in no cell; killed at the end."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def running(
    cgroups: CgroupBackend, cell: str, leaf: str, command: str, *, from_within: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A shell in the leaf, in it before it runs anything. What is left of it at the end is killed."""
    name = CellName(cell)
    with cgroups.entry(name, leaf, from_within=from_within) as entrance:

        def enter() -> None:
            for descriptor in entrance.procs:
                os.write(descriptor, b"0")
            if entrance.clone_into is not None:
                # What CLONE_INTO_CGROUP does, without a clone of our own.
                procs = os.open("cgroup.procs", os.O_WRONLY, dir_fd=entrance.clone_into)
                os.write(procs, b"0")
                os.close(procs)

        process = subprocess.Popen(
            ["/bin/sh", "-c", command], preexec_fn=enter, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    try:
        yield process
    finally:
        cgroups.kill(name, leaf)
        process.wait(PATIENCE_S)
