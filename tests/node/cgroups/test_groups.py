"""Groups of cells, the same for every back end: made whole or not at all, nested, listed, removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import CellLimits
from skerry.model.ids import CellName
from skerry.model.resources import Megabytes, Millicores
from skerry.node.cgroups import detection
from skerry.node.cgroups.backends import CgroupBackend
from skerry.node.cgroups.files import KernelCgroupFiles
from tests.node.cgroups import paths
from tests.node.cgroups.conftest import REAL_GROUPS
from tests.node.cgroups.fake_cgroupfs import FakeCgroupfs

A, AB, ABC, D = CellName("a"), CellName("a/b"), CellName("a/b/c"), CellName("d")
FULL = CellLimits(cpu_weight=50, cpu_quota=Millicores(200), cpus="0", mems="0", memory=Megabytes(32), pids=20)


def test_limits_are_there_before_anything_is_in_the_cell(cgroups: CgroupBackend) -> None:
    cgroups.create(A, FULL)
    held = cgroups.read_limits(A)
    assert (held.cpu_weight, held.cpu_quota, held.memory, held.pids) == (50, 200, 32, 20)
    assert cgroups.pids(A) == []


@pytest.mark.root(tries=1)
def test_all_cells_together_weigh_a_process_for_each_processor(
    hybrid: CgroupBackend, unified: CgroupBackend, fake: FakeCgroupfs, root: str
) -> None:
    shares = Path(paths.MOUNTED.controllers["cpu"], root, "cpu.shares")
    assert int(shares.read_text()) == 1024 * len(os.sched_getaffinity(0))
    cpus = fake.read(f"{fake.mount}/{root}/cpuset.cpus.effective").strip()
    assert cpus == "0-3"
    assert fake.read(f"{fake.mount}/{root}/cpu.weight").strip() == "400"


def test_a_cell_without_limits_has_none_of_its_own(cgroups: CgroupBackend) -> None:
    cgroups.create(A, CellLimits())
    assert cgroups.read_limits(A) == CellLimits()
    assert cgroups.effective_limits(A) == CellLimits()


def test_limits_of_a_cell_that_is_there_can_be_changed_and_those_not_given_stay(
    cgroups: CgroupBackend,
) -> None:
    cgroups.create(A, CellLimits(memory=Megabytes(64), pids=32))
    cgroups.change_limits(A, CellLimits(memory=Megabytes(128), cpu_quota=Millicores(500)))
    assert cgroups.read_limits(A) == CellLimits(memory=Megabytes(128), pids=32, cpu_quota=Millicores(500))
    cgroups.change_limits(A, CellLimits(memory=Megabytes(32)))
    assert cgroups.read_limits(A).memory == 32


def test_limits_of_a_cell_that_is_not_there_cannot_be_changed(cgroups: CgroupBackend) -> None:
    with pytest.raises(errors.NotFound):
        cgroups.change_limits(A, CellLimits(memory=Megabytes(64)))


def test_cells_nest_and_are_listed_with_parents_first(cgroups: CgroupBackend) -> None:
    for cell in (D, A, AB, ABC):
        cgroups.create(cell, CellLimits())
        cgroups.add_leaf(cell, "_init")
    assert cgroups.cells() == [A, AB, ABC, D]
    assert all(cgroups.exists(cell) for cell in (A, AB, ABC, D))
    assert not cgroups.exists(CellName("a/x"))


def test_a_cell_that_is_there_cannot_be_made_again(cgroups: CgroupBackend) -> None:
    cgroups.create(A, FULL)
    with pytest.raises(errors.AlreadyExists, match="cell a already exists"):
        cgroups.create(A, CellLimits())
    assert cgroups.read_limits(A).memory == 32


def test_a_cell_needs_its_parent(cgroups: CgroupBackend) -> None:
    with pytest.raises(errors.NotFound, match="no parent cell a/b for a/b/c"):
        cgroups.create(ABC, CellLimits())
    assert cgroups.cells() == []


@pytest.mark.parametrize("name", ["../escape", "a/../b", "_init", "a/_x", "", "/a"])
def test_a_name_that_is_no_cell_makes_no_group(cgroups: CgroupBackend, name: str) -> None:
    with pytest.raises(errors.Invalid, match="cell name"):
        cgroups.create(CellName(name), CellLimits())
    assert cgroups.cells() == []


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (CellLimits(pids=2_000_000_000), "pids"),
        (CellLimits(memory=Megabytes(16), cpus="4095"), "cpus"),
        (CellLimits(memory=Megabytes(16), mems="63"), "mems"),
    ],
)
def test_a_limit_that_the_kernel_cannot_take_is_named_and_nothing_is_left(
    cgroups: CgroupBackend, limits: CellLimits, field: str
) -> None:
    with pytest.raises(errors.Invalid, match=field) as caught:
        cgroups.create(A, limits)
    assert caught.value.field == field
    assert cgroups.cells() == []
    cgroups.create(A, CellLimits())


def test_a_child_may_ask_for_more_and_is_held_to_what_its_parent_has(cgroups: CgroupBackend) -> None:
    cgroups.create(A, CellLimits(cpu_quota=Millicores(200), memory=Megabytes(32), pids=10))
    cgroups.create(AB, CellLimits())
    cgroups.create(ABC, CellLimits(cpu_quota=Millicores(900), memory=Megabytes(64), pids=5))
    assert cgroups.read_limits(ABC).memory == 64
    bites = cgroups.effective_limits(ABC)
    assert (bites.cpu_quota, bites.memory, bites.pids) == (200, 32, 5)


def test_a_child_cannot_have_cpus_that_its_parent_has_not(cgroups: CgroupBackend) -> None:
    cgroups.create(A, CellLimits(cpus="0"))
    with pytest.raises(errors.Invalid, match="cpus 0-1 are not available") as caught:
        cgroups.create(AB, CellLimits(cpus="0-1"))
    assert caught.value.field == "cpus"
    cgroups.create(AB, CellLimits(cpus="0"))
    assert cgroups.cells() == [A, AB]


def test_leaves_are_beside_child_cells_and_no_cells(cgroups: CgroupBackend) -> None:
    cgroups.create(A, CellLimits())
    cgroups.create(AB, CellLimits())
    for leaf in ("_init", "_x1", "_x1"):  # the second time changes nothing
        cgroups.add_leaf(A, leaf)
    assert cgroups.leaves(A) == ["_init", "_x1"]
    assert cgroups.cells() == [A, AB]
    cgroups.remove_leaf(A, "_x1")
    cgroups.remove_leaf(A, "_x1")
    assert cgroups.leaves(A) == ["_init"]


@pytest.mark.parametrize("leaf", ["x", "_", "_a/b", "_..", "../_x", ""])
def test_a_leaf_cannot_be_mistaken_for_a_cell_or_lie_elsewhere(cgroups: CgroupBackend, leaf: str) -> None:
    cgroups.create(A, CellLimits())
    with pytest.raises(errors.Internal, match="leaf"):
        cgroups.add_leaf(A, leaf)


def test_a_cell_with_children_is_not_removed_and_one_that_is_gone_is_fine(cgroups: CgroupBackend) -> None:
    cgroups.create(A, FULL)
    cgroups.create(AB, CellLimits())
    cgroups.add_leaf(AB, "_init")
    with pytest.raises(errors.FailedPrecondition, match="child cell a/b"):
        cgroups.remove(A)
    assert cgroups.read_limits(A).memory == 32
    cgroups.remove(AB)
    cgroups.remove(A)
    cgroups.remove(A)
    assert cgroups.cells() == []


async def test_what_is_asked_of_a_cell_that_is_not_there(cgroups: CgroupBackend) -> None:
    for request in (
        cgroups.read_limits,
        cgroups.effective_limits,
        cgroups.usage,
        cgroups.freeze,
        cgroups.thaw,
    ):
        with pytest.raises(errors.NotFound, match="cell a"):
            request(A)  # type: ignore[operator]
    with pytest.raises(errors.NotFound):
        cgroups.add_leaf(A, "_init")
    with pytest.raises(errors.NotFound):
        cgroups.entry(A, "_init")
    cgroups.kill(A)
    cgroups.kill(A, "_init")
    assert cgroups.pids(A) == cgroups.leaves(A) == []
    assert await cgroups.emptied(A, within_s=0)


def test_a_root_group_that_somebody_removed_is_made_again(cgroups: CgroupBackend) -> None:
    cgroups.dispose()
    assert cgroups.cells() == []
    cgroups.create(A, FULL)
    assert cgroups.read_limits(A).pids == 20


def test_the_root_group_is_not_disposed_of_while_cells_are_in_it(cgroups: CgroupBackend) -> None:
    cgroups.create(A, FULL)
    cgroups.dispose()
    assert cgroups.read_limits(A).pids == 20


class Failing:
    """Files that fail once, at the nth step of making something."""

    def __init__(self, inner: KernelCgroupFiles | FakeCgroupfs) -> None:
        self._inner = inner
        self.steps_left: int | None = None

    def __getattr__(self, name: str) -> object:
        method = getattr(self._inner, name)
        if name not in ("mkdir", "read", "write"):
            return method

        def step(*arguments: str) -> object:
            if self.steps_left is not None:
                self.steps_left -= 1
                if self.steps_left == 0:
                    self.steps_left = None
                    raise OSError(errno.EIO, "Input/output error")
            return method(*arguments)

        return step


@pytest.mark.parametrize("kind", ["unified", pytest.param("hybrid", marks=REAL_GROUPS)])
def test_a_failure_at_any_step_of_making_a_cell_leaves_nothing_of_it(kind: str, root: str) -> None:
    files = Failing(FakeCgroupfs() if kind == "unified" else KernelCgroupFiles())
    if kind == "unified":
        backend = detection.make_unified(files, "/fake", root)  # type: ignore[arg-type]
    else:
        backend = detection.make_hybrid(files, paths.MOUNTED, root)  # type: ignore[arg-type]
    backend.prepare()
    steps = 0
    while not backend.exists(A):
        steps += 1
        files.steps_left = steps
        try:
            backend.create(A, FULL)
        except errors.Internal:
            assert backend.cells() == []
    files.steps_left = None
    assert steps > 10
    backend.remove(A)
    backend.dispose()
    assert paths.groups_of(root) == []
