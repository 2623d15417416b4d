"""The fake v2 tree answers as the kernel does: the same questions to both, as far as this machine has one."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from skerry.node.cgroups.files import CgroupFiles, KernelCgroupFiles
from tests.node.cgroups import paths
from tests.node.cgroups.conftest import needs_hybrid
from tests.node.cgroups.fake_cgroupfs import FakeCgroupfs
from tests.support.waiting import eventually_sync


@dataclass
class Ground:
    """A folder in a v2 tree and a process to move about."""

    files: CgroupFiles
    home: str
    pid: int

    def errno_of(self, verb: str, path: str, *text: str) -> int | None:
        try:
            getattr(self.files, verb)(f"{self.home}/{path}", *text)
        except OSError as error:
            return error.errno
        return None

    def read(self, path: str) -> str:
        return self.files.read(f"{self.home}/{path}").strip()


@pytest.fixture(params=["fake", pytest.param("kernel", marks=[needs_hybrid, pytest.mark.root])])
def ground(request: pytest.FixtureRequest) -> Iterator[Ground]:
    if request.param == "fake":
        fake = FakeCgroupfs(controllers=("hugetlb",))
        fake.mkdir("/fake/home")
        yield Ground(fake, "/fake/home", 4711)
        return
    home = f"{paths.MOUNTED.unified}/{paths.root_name()}"
    files = KernelCgroupFiles()
    files.mkdir(home)
    try:
        with paths.stranger() as process:
            yield Ground(files, home, process.pid)
    finally:
        for folder, _, _ in os.walk(home, topdown=False):
            eventually_sync(lambda folder=folder: _is_removed(folder))  # type: ignore[misc]


def _is_removed(folder: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(folder)
    return not os.path.exists(folder)


def test_groups_are_made_one_by_one_and_removed_when_nothing_is_in_them(ground: Ground) -> None:
    assert ground.errno_of("mkdir", "a/b") == errno.ENOENT
    assert ground.errno_of("mkdir", "a") is None
    assert ground.errno_of("mkdir", "a") == errno.EEXIST
    assert ground.errno_of("mkdir", "a/b") is None
    assert ground.files.list(ground.home) == ["a"]
    assert ground.errno_of("rmdir", "a") == errno.EBUSY
    assert ground.errno_of("rmdir", "a/b") is None
    assert ground.errno_of("rmdir", "a") is None
    assert ground.errno_of("rmdir", "a") == errno.ENOENT
    assert ground.errno_of("list", "a") == errno.ENOENT
    assert ground.errno_of("read", "a/cgroup.procs") == errno.ENOENT


def test_a_group_with_a_process_says_so_upwards_and_is_not_removed(ground: Ground) -> None:
    for path in ("a", "a/b"):
        ground.files.mkdir(f"{ground.home}/{path}")
    assert ground.read("a/cgroup.events").splitlines() == ["populated 0", "frozen 0"]
    assert ground.errno_of("write", "a/b/cgroup.procs", str(ground.pid)) is None
    assert ground.read("a/b/cgroup.procs") == str(ground.pid)
    assert ground.read("a/cgroup.procs") == ""
    assert "populated 1" in ground.read("a/cgroup.events").splitlines()
    assert ground.errno_of("rmdir", "a/b") == errno.EBUSY
    assert ground.errno_of("write", "a/cgroup.kill", "1") is None
    eventually_sync(lambda: "populated 0" in ground.read("a/cgroup.events").splitlines())
    assert ground.errno_of("rmdir", "a/b") is None


def test_what_the_control_files_take(ground: Ground) -> None:
    ground.files.mkdir(f"{ground.home}/a")
    assert ground.read("a/cgroup.type") == "domain"
    assert ground.read("a/cgroup.controllers") == ""
    assert ground.errno_of("read", "a/cgroup.kill") == errno.EINVAL
    assert ground.errno_of("write", "a/cgroup.kill", "2") == errno.ERANGE
    assert ground.errno_of("write", "a/cgroup.freeze", "2") == errno.ERANGE
    assert ground.errno_of("write", "a/cgroup.freeze", "1") is None
    assert ground.read("a/cgroup.freeze") == "1"
    assert ground.errno_of("write", "a/cgroup.subtree_control", "+hugetlb") == errno.ENOENT  # not handed down
    assert ground.errno_of("write", "a/cgroup.subtree_control", "+nonsense") == errno.EINVAL
    assert ground.errno_of("read", "a/memory.max") == errno.ENOENT


def test_below_a_threaded_group_no_process_can_be_put(ground: Ground) -> None:
    for path in ("a", "a/t", "a/t/x"):
        ground.files.mkdir(f"{ground.home}/{path}")
    assert ground.errno_of("write", "a/t/cgroup.type", "threaded") is None
    assert ground.read("a/t/cgroup.type") == "threaded"
    assert ground.read("a/cgroup.type") == "domain threaded"
    assert ground.read("a/t/x/cgroup.type") == "domain invalid"
    assert ground.errno_of("write", "a/t/x/cgroup.procs", str(ground.pid)) == errno.EOPNOTSUPP
    assert ground.errno_of("read", "a/t/cgroup.procs") == errno.EOPNOTSUPP
