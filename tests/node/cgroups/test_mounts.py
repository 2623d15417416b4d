"""What is mounted where, from the kernel's own words."""

from __future__ import annotations

import sys

from skerry.node.cgroups.mounts import CgroupMounts, parse

HYBRID = """\
23 1 0:20 / /sys rw,relatime - sysfs sysfs rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def test_a_hybrid_has_controllers_beside_the_unified_tree() -> None:
    assert parse(HYBRID) == CgroupMounts(
        "/sys/fs/cgroup/unified",
        {
            "cpu": "/sys/fs/cgroup/cpu,cpuacct",
            "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
            "memory": "/sys/fs/cgroup/memory",
        },
        ("/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/systemd"),
    )


def test_a_mount_is_used_from_its_own_top_whatever_group_that_shows() -> None:
    line = "50 40 0:26 /docker/abc /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
    assert parse(line) == CgroupMounts("/sys/fs/cgroup", {})


def test_what_is_mounted_read_only_is_not_there() -> None:
    by_mount = "50 40 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n"
    by_file_system = "50 40 0:26 / /cg rw - cgroup cgroup ro,memory\n"
    assert parse(by_mount + by_file_system) == CgroupMounts(None, {})


def test_what_a_later_mount_hides_is_not_there() -> None:
    hidden = "50 40 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n" + HYBRID.partition("\n")[2]
    assert parse(hidden).unified == "/sys/fs/cgroup/unified"


def test_spaces_in_a_mount_point_are_read() -> None:
    assert parse("50 40 0:26 / /a\\040b rw - cgroup2 cgroup rw\n").unified == "/a b"


def test_the_first_of_several_mounts_is_taken_and_odd_lines_are_passed_over() -> None:
    text = "nonsense\n50 40 0:26 / /one rw - cgroup2 c rw\n51 40 0:26 / /two rw - cgroup2 c rw\n"
    assert parse(text).unified == "/one"
    assert parse("") == CgroupMounts(None, {})


def test_other_file_systems_hide_and_are_not_gone_through_again() -> None:
    covered = HYBRID + "60 31 0:50 / /sys/fs/cgroup/memory rw - tmpfs t rw\n"
    assert "memory" not in parse(covered).controllers
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    others = "".join(f"{70 + n} 23 0:60 / /run/{n} rw - tmpfs t rw\n" for n in range(2000))
    sys.setprofile(count)
    try:
        assert parse(others + HYBRID).unified == "/sys/fs/cgroup/unified"
    finally:
        sys.setprofile(None)
    assert calls < 50_000  # a million for all pairs
