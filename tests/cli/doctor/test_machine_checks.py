"""Checks of a machine: what is wrong is found, with a command, and what is right is not."""

from __future__ import annotations

import pytest

from skerry.cli.doctor import machine_checks as checks
from skerry.cli.doctor.facts import (
    CgroupFacts,
    ClockFacts,
    ClockOffset,
    ContextFacts,
    DiskFacts,
    KernelFacts,
    Leftover,
    LeftoverFacts,
    PortFacts,
    ProgramFacts,
    RuntimeFacts,
    SkerryFacts,
)
from skerry.cli.doctor.findings import Finding, FindingStatus
from skerry.node.containers import runtime_advisories

OK, WARNING, PROBLEM, SKIPPED = FindingStatus

KERNEL = KernelFacts(
    release="6.1.0-18-amd64",
    machine="x86_64",
    file_systems=frozenset({"ext4", "overlay"}),
    max_user_namespaces=65536,
    has_seccomp=True,
    has_loop_devices=True,
    has_tun=True,
    has_wireguard=True,
    descriptors=524288,
)
ALL = {name: f"/usr/bin/{name}" for name, _, _ in (*checks.PROGRAMS, *checks.OPTIONAL_PROGRAMS)}
GB = 1 << 30
DISK = DiskFacts("/var/lib/skerry", 100 * GB, 50 * GB, 1000, 900, False, 8 << 20)


def statuses(found: list[Finding]) -> list[FindingStatus]:
    return [each.status for each in found]


def only(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


def test_a_good_machine_has_no_warning() -> None:
    found = [
        *checks.check_root(True),
        *checks.check_skerry(SkerryFacts("/data", role="up", pid=7)),
        *checks.check_cgroups(CgroupFacts("unified")),
        *checks.check_kernel(KERNEL),
        *checks.check_programs(ProgramFacts(ALL, ()), KERNEL),
        *checks.check_runtimes(ProgramFacts(ALL, (RuntimeFacts("runc", "1.3.3", ""),))),
        *checks.check_disk(DISK),
        *checks.check_clock(ClockFacts(True, True)),
        *checks.check_leftovers(LeftoverFacts((), frozenset(), "0" * 8, True)),
    ]
    assert set(statuses(found)) == {OK}


def test_everything_that_is_wrong_says_how_to_fix_it() -> None:
    bad = KERNEL._replace(
        release="4.19.0",
        machine="riscv64",
        file_systems=frozenset(),
        max_user_namespaces=0,
        has_seccomp=False,
        has_loop_devices=False,
        descriptors=1024,
        has_wireguard=False,
        has_tun=False,
    )
    found = [
        *checks.check_root(False),
        *checks.check_skerry(SkerryFacts("/data", "No Skerry is running")),
        *checks.check_cgroups(CgroupFacts(failure="memory is missing: `cgroup_enable=memory`")),
        *checks.check_kernel(bad),
        *checks.check_programs(ProgramFacts({}, ()), bad),
        *checks.check_programs(ProgramFacts(ALL, ()), bad),
        *checks.check_runtimes(ProgramFacts({}, ())),
        *checks.check_ports([PortFacts("http.listen", "127.0.0.1:1323", "is in use", "nginx (pid 4)")]),
        *checks.check_disk(DISK._replace(free_bytes=0)),
        *checks.check_disk(DISK._replace(is_read_only=True)),
        *checks.check_clock(ClockFacts(False, True)),
        *checks.check_contexts(ContextFacts("/c", 1, "a", is_open_to_others=True)),
    ]
    assert len(found) > 20
    assert set(statuses(found)) == {WARNING, PROBLEM}
    assert [each for each in found if not each.fix] == []


def test_the_fix_for_missing_memory_limits_is_on_the_command_line_of_the_kernel() -> None:
    finding = only(checks.check_cgroups(CgroupFacts(failure="lacks memory: `cgroup_enable=memory`")))
    assert (finding.status, "cgroup_enable=memory" in finding.fix) == (PROBLEM, True)


def test_a_runtime_with_known_vulnerabilities_is_a_warning_and_is_updated_by_its_package() -> None:
    text = runtime_advisories.warning("runc", "1.1.5+ds1")
    finding = only(checks.check_runtimes(ProgramFacts({}, (RuntimeFacts("runc", "1.1.5+ds1", text),))))
    assert finding.status is WARNING
    assert "CVE-2024-21626" in finding.message
    assert finding.fix.endswith("--only-upgrade runc")


def test_a_kernel_without_id_mapped_layers_is_a_warning() -> None:
    assert statuses(checks.check_kernel(KERNEL._replace(release="5.15.0"))) == [WARNING]


def test_a_missing_program_that_containers_need_is_a_problem_and_others_are_warnings() -> None:
    without_nft = ProgramFacts({**ALL, "nft": ""}, ())
    without_node = ProgramFacts({**ALL, "node": ""}, ())
    assert only(checks.check_programs(without_nft, KERNEL)) == Finding(
        "programs", PROBLEM, "nft is not installed: containers have no network", "apt-get install nftables"
    )
    assert only(checks.check_programs(without_node, KERNEL)).status is WARNING


def test_an_ordinary_user_is_not_told_of_what_only_root_can_use() -> None:
    without = ProgramFacts({**ALL, "mke2fs": "", "haproxy": ""}, ())
    assert statuses(checks.check_programs(without, KERNEL, is_root=False)) == [OK]
    assert statuses(checks.check_programs(without, KERNEL)) == [PROBLEM, WARNING]
    kernel = KERNEL._replace(has_loop_devices=False)
    assert statuses(checks.check_kernel(kernel, is_root=False)) == [OK]
    assert statuses(checks.check_kernel(kernel)) == [WARNING]


def test_without_wireguard_in_the_kernel_the_program_is_needed() -> None:
    kernel = KERNEL._replace(has_wireguard=False)
    assert only(checks.check_programs(ProgramFacts(ALL, ()), kernel)).fix == "apt-get install wireguard-go"
    with_it = ProgramFacts({**ALL, "wireguard-go": "/usr/bin/wireguard-go"}, ())
    assert statuses(checks.check_programs(with_it, kernel)) == [OK]
    assert only(checks.check_programs(with_it, kernel._replace(has_tun=False))).fix == "modprobe tun"


def test_a_port_of_another_program_is_a_problem_with_another_port_and_our_own_is_not() -> None:
    taken = PortFacts("grpc.listen", "127.0.0.1:50052", "is in use by another program", "etcd (pid 9)")
    finding = only(checks.check_ports([taken]))
    assert finding.status is PROBLEM
    assert "etcd (pid 9)" in finding.message
    assert finding.fix.startswith("skerry up --grpc 127.0.0.1:50053")
    assert statuses(checks.check_ports([taken._replace(is_own=True)])) == [OK]
    assert statuses(checks.check_ports([PortFacts("http.listen", "127.0.0.1:1323")])) == [OK]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"free_bytes": 1 << 20}, PROBLEM),
        ({"is_read_only": True}, PROBLEM),
        ({"free_bytes": GB}, WARNING),
        ({"free_inodes": 5}, WARNING),
        ({"free_inodes": 0, "total_inodes": 0}, OK),  # Btrfs counts none
        ({"free_bytes": 3 * GB}, OK),
        ({"free_bytes": 200 << 20, "total_bytes": 300 << 20}, WARNING),  # too little for an image
    ],
)
def test_a_full_disk_is_a_problem_and_a_nearly_full_one_a_warning(
    change: dict[str, int], status: FindingStatus
) -> None:
    assert only(checks.check_disk(DISK._replace(**change))).status is status


@pytest.mark.parametrize(
    ("seconds", "uncertainty", "status"),
    [
        (0.4, 0.5, OK),
        (-0.4, 0.5, OK),
        (10, 0.5, WARNING),
        (-10, 9, OK),
        (300, 0.5, PROBLEM),
        (-31, 0.5, PROBLEM),
    ],
)
def test_another_clock_counts_as_far_as_the_network_cannot_explain_it(
    seconds: float, uncertainty: float, status: FindingStatus
) -> None:
    offset = ClockOffset("the server", seconds, uncertainty)
    assert only(checks.check_offsets([offset], ClockFacts(True, True))).status is status


def test_which_clock_is_ahead_is_said() -> None:
    ahead, behind = (ClockOffset("north", seconds, 0.5) for seconds in (60.0, -60.0))
    messages = [each.message for each in checks.check_offsets([ahead, behind], None)]
    assert "60.0 s ahead of this machine" in messages[0]
    assert "60.0 s behind this machine" in messages[1]


def leftovers(*found: Leftover, running: set[str] | None = None, own: str = "aaaaaaaa") -> list[Finding]:
    return checks.check_leftovers(LeftoverFacts(found, frozenset(running or ()), own, True))


def test_what_a_running_skerry_has_is_no_leftover() -> None:
    assert statuses(leftovers(Leftover("link", "sk-11111111", "11111111"), running={"11111111"})) == [OK]


def test_leftovers_are_a_warning_with_the_commands_that_remove_them() -> None:
    finding = only(
        leftovers(
            Leftover("link", "sk-11111111", "11111111"),
            Leftover("link", "s11111111abcdef", "11111111"),
            Leftover("table", "skerry_11111111", "11111111", family="inet"),
            Leftover("table", "skerry_11111111_dns", "11111111", family="ip"),
            Leftover("cgroup", "/sys/fs/cgroup/cpu/skerry-11111111", "11111111"),
            Leftover("cgroup", "/sys/fs/cgroup/pids/skerry-11111111", "11111111"),
            Leftover("folder", "/run/skerry-secrets/11111111", "11111111"),
        )
    )
    assert finding.status is WARNING
    assert finding.fix == (
        "ip link delete sk-11111111; "
        "nft 'delete table inet skerry_11111111; delete table ip skerry_11111111_dns'; "
        "find /sys/fs/cgroup/cpu/skerry-11111111 /sys/fs/cgroup/pids/skerry-11111111 "
        "-depth -type d -exec rmdir {} +; "
        "rm -r /run/skerry-secrets/11111111"
    )


def test_cells_that_still_run_are_not_to_be_removed() -> None:
    finding = only(leftovers(Leftover("cgroup", "/g", "11111111", has_processes=True)))
    assert finding.status is WARNING
    assert "rmdir" not in finding.fix


def test_what_the_next_start_takes_over_is_no_warning() -> None:
    assert statuses(leftovers(Leftover("link", "sk-aaaaaaaa", "aaaaaaaa"))) == [OK]


def test_without_root_nothing_is_said_of_leftovers() -> None:
    facts = LeftoverFacts((Leftover("link", "sk-11111111", "11111111"),), frozenset(), "aaaaaaaa", False)
    assert statuses(checks.check_leftovers(facts)) == [SKIPPED]


def test_a_machine_whose_commands_use_a_server_elsewhere_needs_no_skerry() -> None:
    facts = SkerryFacts("/data", "No Skerry is running")
    assert only(checks.check_skerry(facts, "https://hub:1323")).status is OK
    assert only(checks.check_skerry(facts)).fix == "skerry up"
