"""Which back end a machine gets, and what it is told if it can have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import CellLimits
from skerry.model.ids import CellName
from skerry.node.cgroups import detection
from skerry.node.cgroups.mounts import CgroupMounts
from tests.node.cgroups import paths
from tests.node.cgroups.conftest import needs_hybrid
from tests.node.cgroups.fake_cgroupfs import FakeCgroupfs

V1 = {name: f"/v1/{name}" for name in ("cpu", "cpuset", "memory", "pids", "freezer", "blkio", "cpuacct")}
NEW, OLD = "6.1.0-amd64", "5.4.0"


def test_a_v2_tree_with_the_controllers_is_unified() -> None:
    backend = detection.choose(CgroupMounts("/fake", {}), "skerry", FakeCgroupfs(), NEW)
    assert (backend.kind, backend.limits_in_v2) == ("unified", True)


def test_a_v2_tree_without_them_beside_v1_is_hybrid_and_says_that_limits_are_not_in_v2() -> None:
    backend = detection.choose(
        CgroupMounts("/fake", V1), "skerry", FakeCgroupfs(controllers=("hugetlb",)), NEW
    )
    assert (backend.kind, backend.limits_in_v2) == ("hybrid", False)


def test_v1_alone_is_legacy() -> None:
    backend = detection.choose(CgroupMounts(None, V1), "skerry", FakeCgroupfs(), NEW)
    assert (backend.kind, backend.limits_in_v2) == ("legacy", False)


@pytest.mark.parametrize(
    ("v1", "can_leave_cpu_quota"),
    [
        (V1, True),
        (V1 | dict.fromkeys(("cpu", "cpuacct"), "/v1/cpu,cpuacct"), True),
        (V1 | dict.fromkeys(("cpu", "memory"), "/v1/cpu,memory"), False),  # it would leave that limit too
        ({}, False),
    ],
)
def test_a_process_can_leave_the_group_of_its_cpu_quota_if_that_holds_no_other_limit(
    v1: dict[str, str], can_leave_cpu_quota: bool
) -> None:
    files = FakeCgroupfs(controllers=("hugetlb",)) if v1 else FakeCgroupfs()
    backend = detection.choose(CgroupMounts("/fake", v1), "skerry", files, NEW)
    assert backend.can_leave_cpu_quota is can_leave_cpu_quota


@pytest.mark.parametrize(
    ("mounted", "output"),
    [
        (CgroupMounts(None, {}), "mount cgroup2"),
        (CgroupMounts(None, {k: v for k, v in V1.items() if k != "freezer"}), "freezer"),
        (
            CgroupMounts(None, {k: v for k, v in V1.items() if k != "memory"}),
            "memory is missing.*command line",
        ),
        (CgroupMounts("/fake", {k: v for k, v in V1.items() if k == "cpu"}), "memory, pids is in v2"),
    ],
)
def test_what_is_missing_is_said(mounted: CgroupMounts, output: str) -> None:
    files = FakeCgroupfs(controllers=("memory", "pids"))
    with pytest.raises(errors.Unavailable, match=output):
        detection.choose(mounted, "skerry", files, NEW)


@pytest.mark.parametrize(("release", "clones"), [(NEW, True), ("5.7.0", True), (OLD, False), ("odd", False)])
def test_a_process_is_cloned_into_its_group_if_the_kernel_can_and_enters_by_itself_if_not(
    release: str, clones: bool, fake: FakeCgroupfs
) -> None:
    backend = detection.choose(CgroupMounts("/fake", {}), "skerry", fake, release)
    backend.prepare()
    backend.create(CellName("a"), CellLimits())
    backend.add_leaf(CellName("a"), "_init")
    with backend.entry(CellName("a"), "_init") as entrance:
        assert (entrance.clone_into is not None) is clones
        assert len(entrance.procs) == (0 if clones else 1)


@needs_hybrid
@pytest.mark.root
def test_this_machine_gets_a_back_end_that_is_ready(root: str) -> None:
    found = detection.detect(root)
    try:
        assert found.cells() == []
        assert paths.groups_of(root) != []
        detection.detect(root)  # again, as after a restart
    finally:
        found.dispose()
    assert paths.groups_of(root) == []


def test_no_cgroups_at_all_is_no_crash(tmp_path: Path) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text("23 1 0:20 / /sys rw,relatime - sysfs sysfs rw\n")
    with pytest.raises(errors.Unavailable, match="no cgroup file system"):
        detection.detect("skerry", mountinfo)
