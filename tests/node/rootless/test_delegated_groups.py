"""Groups of cells below a delegated cgroup: with the rules of the kernel in memory, and for real."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import CellLimits
from skerry.model.ids import CellName
from skerry.model.resources import Megabytes, Millicores
from skerry.node.rootless import delegated_groups
from skerry.node.rootless.delegated_groups import GroupRecord
from skerry.node.rootless.delegation import DelegatedCgroup
from tests.node.cgroups import paths
from tests.node.cgroups.fake_cgroupfs import FakeCgroupfs
from tests.support.ordinary_users import CAN_HAVE_NAMESPACES, OrdinaryUser, ordinary_user

PROGRAM = Path(__file__).with_name("delegated_program.py")
A = CellName("a")
LIMITS = CellLimits(cpu_weight=50, cpu_quota=Millicores(200), memory=Megabytes(32), pids=20)


def delegated(fake: FakeCgroupfs, name: str, *controllers: str) -> DelegatedCgroup:
    """As a service manager does: the group is there, with these controllers."""
    for path in ("/fake/user", f"/fake/user/{name}"):
        with contextlib.suppress(FileExistsError):
            fake.mkdir(path)
    for path in ("/fake", "/fake/user"):
        fake.write(f"{path}/cgroup.subtree_control", " ".join(f"+{each}" for each in controllers))
    return DelegatedCgroup("/fake", f"user/{name}", frozenset(controllers))


def test_the_agent_moves_to_a_leaf_so_that_cells_beside_it_have_controllers(tmp_path: Path) -> None:
    fake = FakeCgroupfs()
    found = delegated(fake, "one.scope", "cpu", "memory", "pids")
    for pid in (os.getpid(), 4711):  # and the holder
        fake.enter(str(found.folder), pid)
    groups = delegated_groups.open_groups(fake, found, "skerry-key", tmp_path, "boot")
    assert groups is not None
    assert sorted(fake.read(f"{found.folder}/skerry-agent/cgroup.procs").split()) == sorted(
        map(str, (os.getpid(), 4711))
    )
    groups.create(A, LIMITS)
    assert groups.read_limits(A) == LIMITS
    assert fake.read(f"{found.folder}/skerry-key/a/memory.max").strip() == str(32 << 20)


def test_without_the_controller_cpu_the_others_bind(tmp_path: Path) -> None:
    fake = FakeCgroupfs()
    found = delegated(fake, "one.scope", "memory", "pids")
    groups = delegated_groups.open_groups(fake, found, "skerry-key", tmp_path, "boot")
    assert groups is not None
    groups.create(A, LIMITS)
    groups.lift_cpu_quota(A)
    assert groups.read_limits(A) == CellLimits(memory=Megabytes(32), pids=20)


def test_without_memory_there_are_no_groups(tmp_path: Path) -> None:
    fake = FakeCgroupfs()
    found = delegated(fake, "one.scope", "cpu", "pids")
    assert delegated_groups.open_groups(fake, found, "skerry-key", tmp_path, "boot") is None
    assert not (tmp_path / delegated_groups.RECORD).exists()


def test_the_next_agent_joins_the_cells_where_they_are(tmp_path: Path) -> None:
    fake = FakeCgroupfs()
    first = delegated(fake, "one.scope", "memory", "pids")
    groups = delegated_groups.open_groups(fake, first, "skerry-key", tmp_path, "boot")
    assert groups is not None
    groups.create(A, CellLimits())
    second = delegated(fake, "two.scope", "memory", "pids")
    for found in (second, None):
        groups = delegated_groups.open_groups(fake, found, "skerry-key", tmp_path, "boot")
        assert groups is not None
        assert groups.cells() == [A]
    groups.remove(A)
    groups.dispose()
    groups = delegated_groups.open_groups(fake, second, "skerry-key", tmp_path, "boot")
    assert groups is not None
    assert fake.exists(f"{second.folder}/skerry-key")


def test_groups_of_an_earlier_boot_are_not_looked_for() -> None:
    old = DelegatedCgroup("/fake", "user/old.scope", frozenset())
    new = DelegatedCgroup("/fake", "user/new.scope", frozenset())
    assert delegated_groups.choose(new, GroupRecord("before", old), "now", has_cells=True) == new
    assert delegated_groups.choose(new, GroupRecord("now", old), "now", has_cells=False) == new
    assert delegated_groups.choose(None, GroupRecord("now", old), "now", has_cells=True) == old
    assert delegated_groups.choose(None, None, "now", has_cells=False) is None


def test_who_may_not_join_the_cells_says_where_they_are() -> None:
    class Refusing(FakeCgroupfs):
        def write(self, path: str, text: str) -> None:
            raise PermissionError(13, "Permission denied", path)

    fake = Refusing()
    fake.mkdir("/fake/scope")
    with pytest.raises(errors.Unavailable, match="in the cgroup /fake/scope"):
        delegated_groups.join(fake, DelegatedCgroup("/fake", "scope", frozenset()), 1)


@contextlib.contextmanager
def real_group(user: OrdinaryUser) -> Iterator[Path]:
    """A group of v2 that belongs to the user."""
    assert paths.MOUNTED.unified is not None
    folder = Path(paths.MOUNTED.unified, paths.root_name())
    folder.mkdir()
    try:
        for each in (folder, folder / "cgroup.procs", folder / "cgroup.subtree_control"):
            os.chown(each, user.uid, user.uid)
        yield folder
    finally:
        for each in sorted(folder.rglob("*"), reverse=True):
            if each.is_dir():
                each.rmdir()
        folder.rmdir()


@pytest.mark.root
@pytest.mark.skipif(not (paths.HAS_HYBRID and CAN_HAVE_NAMESPACES), reason="needs v2 and user namespaces")
def test_an_ordinary_user_makes_and_kills_groups_in_a_delegated_cgroup() -> None:
    with ordinary_user() as user, real_group(user) as group:
        process = user.start(
            *user.python,
            PROGRAM,
            user.home,
            stdout=-1,
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
        output, _ = process.communicate(timeout=60)
        answer = json.loads(output)
        assert answer.pop("joined").endswith("/skerry-agent")
        assert answer == {"is_inside": True, "emptied": True, "left": ["skerry-agent"], "ended": True}
