"""A host says what it has, in the words of the kernel, and what of it is in use."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from skerry.node import host


def test_a_host_is_described_as_the_kernel_does(tmp_path: Path) -> None:
    described = host.describe(tmp_path, "hybrid")
    system, _, kernel, _, machine = os.uname()
    assert described.system == system.lower() == "linux"
    assert described.kernel == kernel
    assert described.architecture == {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    assert described.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert described.cgroups == "hybrid"
    disk = os.statvfs(tmp_path)
    assert described.disk_bytes == disk.f_blocks * disk.f_frsize
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert described.memory_bytes == pytest.approx(pages, rel=0.05)


def test_a_host_has_the_cpus_that_its_cells_may_use(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    assert host.describe(tmp_path, "").cpus == len(allowed)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert host.describe(tmp_path, "").cpus == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_two_descriptions_are_equal_and_make_the_same_json(tmp_path: Path) -> None:
    first, second = host.describe(tmp_path, "unified"), host.describe(tmp_path, "unified")
    assert first == second
    assert msgspec.json.decode(msgspec.json.encode(first), type=host.HostInfo) == second


def test_usage_lies_within_what_the_host_has(tmp_path: Path) -> None:
    described = host.describe(tmp_path, "")
    used = host.measure(tmp_path)
    assert 0 < used.memory_available_bytes <= described.memory_bytes
    assert 0 <= used.disk_free_bytes <= described.disk_bytes
    assert all(load >= 0 for load in used.load)


def test_time_that_cpus_work_adds_up(tmp_path: Path) -> None:
    before = host.measure(tmp_path)
    spent = os.times().user
    while os.times().user < spent + 0.05:
        pass
    # The kernel counts in hundredths of a second.
    assert host.measure(tmp_path).cpu_busy_s >= before.cpu_busy_s + 0.02


def test_the_room_of_a_host_is_what_cells_can_have_in_the_units_of_room(tmp_path: Path) -> None:
    described, used = host.describe(tmp_path, ""), host.measure(tmp_path)
    resources = host.usable_resources(tmp_path)
    assert (resources.cpu, resources.memory) == (described.cpus * 1000, described.memory_bytes // 1024**2)
    assert resources.disk == pytest.approx(used.disk_free_bytes / 1024**3, abs=1.5)
    more = host.usable_resources(tmp_path, used_bytes=100 * 1024**3)
    assert more.disk == pytest.approx(resources.disk + 100, abs=1)
    assert host.usable_resources(tmp_path, reserved_mb=100).memory == resources.memory - 100
    assert host.usable_resources(tmp_path, reserved_mb=2 * resources.memory).memory == 0
