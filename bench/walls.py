"""What each wall around a workload costs by itself, against `runc run` of a static `true` in the same run.

Each is put up many times by the code that a start uses, between the same runs of runc. Most are made ahead of
a start or beside it, so a start pays less than their sum; what a start costs in all is promised in
`bench.cells`, `bench.containers` and `bench.functions`.
"""

from __future__ import annotations

import itertools
import os
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.cells import make_bundle, runc_run
from bench.figures import Figure
from skerry.node import host
from skerry.node.containers.overlays import UPPER, WORK, Overlays
from skerry.node.containers.writable_layers import WritableLayers
from skerry.node.kernel import syscalls
from skerry.node.launcher.child.cell_root import CellRoot, HostView
from skerry.node.launcher.child.seccomp import default_filter
from skerry.node.user_namespaces import UserNamespaces

ROUNDS = 20
PER_ROUND = 5
GIGABYTE = 1024**3


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="skerry-walls-") as name:
        folder = Path(name)
        (folder / "bundle").mkdir()
        make_bundle(folder / "bundle")
        times = _in_child(lambda: _rounds(folder))
    runc = times.pop(0)
    told = (
        ("the host's mounts, copied", "what a cell without a root of its own would begin with"),
        ("a small root, copied", "workers and cells"),
        ("the filter on system calls", "installed"),
        ("a user namespace with its range of ids", "made ahead for containers with a network"),
        ("layers of an image, stacked", "with the node's ids"),
        ("the same, mapped to a user namespace", ""),
        ("a file system of 1 GB", "made and mounted, where there are no project quotas"),
    )
    yield Figure("runc run of a static true, p50", runc * 1e3, "ms")
    for (what, note), seconds in zip(told, times, strict=True):
        yield Figure(f"{what}, p50", seconds / runc * 100, "% of runc run", note=note)


def _rounds(folder: Path) -> list[float]:
    """Medians: of runc, and of each wall. In a process of its own, which has one thread."""
    root, sieve = CellRoot(HostView()), syscalls.SeccompFilter(default_filter())
    users = UserNamespaces(f"bench-{os.getpid()}")
    shown = users.make("shown")
    overlays = Overlays(folder, host.boot_id())
    disks = WritableLayers.on(folder, host.boot_id())
    image = folder / "bundle" / "rootfs"
    numbers = itertools.count()

    def install() -> None:
        syscalls.set_no_new_privileges()
        sieve.install()

    def make_users() -> float:
        begin = time.perf_counter()
        users.make("again")
        took = time.perf_counter() - begin
        users.remove("again")
        return took

    def stack(*, is_mapped: bool) -> float:
        target, layer = folder / f"root{next(numbers)}", folder / f"layer{next(numbers)}"
        for name in (UPPER, WORK):
            (layer / name).mkdir(parents=True)
        begin = time.perf_counter()
        overlays.mount(target, [image], layer=layer, users=shown if is_mapped else None)
        took = time.perf_counter() - begin
        overlays.unmount(target)
        return took

    def open_disk() -> float:
        layer = folder / f"disk{next(numbers)}"
        begin = time.perf_counter()
        disks.make(layer, GIGABYTE)
        disks.open(layer, GIGABYTE)
        took = time.perf_counter() - begin
        overlays.unmount(layer)
        disks.remove(layer)
        return took

    walls: tuple[Callable[[], float], ...] = (
        lambda: _forked(lambda: syscalls.unshare(syscalls.CLONE_NEWNS)),
        lambda: _forked(root.enter),
        lambda: _forked(install),
        make_users,
        lambda: stack(is_mapped=False),
        lambda: stack(is_mapped=True),
        open_disk,
    )
    runc: list[float] = []
    seconds: list[list[float]] = [[] for _ in walls]
    try:
        for number in range(ROUNDS):
            runc.append(runc_run(folder / "bundle", number))
            for wall, kept in zip(walls, seconds, strict=True):
                kept.extend(wall() for _ in range(PER_ROUND))
    finally:
        users.keep_only(())
        disks.close()
    return [statistics.median(each) for each in (runc, *seconds)]


def _forked(step: Callable[[], None]) -> float:
    """How long `step` takes in a child, which ends with what it did."""

    def timed() -> list[float]:
        begin = time.perf_counter()
        step()
        return [time.perf_counter() - begin]

    return _in_child(timed)[0]


def _in_child(work: Callable[[], list[float]]) -> list[float]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            found = work()
            os.write(writer, struct.pack(f"={len(found)}d", *found))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, "a wall could not be put up; run it as root, on a machine that runs containers"
    return list(struct.unpack(f"={len(data) // 8}d", data))
