"""Checks for an ordinary user: everything that is weaker says the command that changes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.cli.doctor.facts import RootlessFacts
from skerry.cli.doctor.findings import FindingStatus
from skerry.cli.doctor.rootless_checks import check_rootless
from skerry.cli.doctor.rootless_facts import rootless

BEST = RootlessFacts(
    "ann",
    controllers=frozenset({"cpu", "memory", "pids", "io"}),
    has_network_program=True,
    first_port=80,
)


def test_a_user_who_has_everything_gets_no_warning() -> None:
    (finding,) = check_rootless(BEST)
    assert finding.status is FindingStatus.OK


@pytest.mark.parametrize(
    ("facts", "said", "fix"),
    [
        (
            BEST._replace(missing_programs=("newuidmap",)),
            "newuidmap not found",
            "sudo apt-get install uidmap",
        ),
        (
            BEST._replace(missing_ranges=("/etc/subgid",)),
            "no ids for ann in /etc/subgid",
            "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ann",
        ),
        (
            BEST._replace(controllers=None),
            "no cgroup is delegated",
            "systemd-run --user --scope -p Delegate=yes skerry up",
        ),
        (
            BEST._replace(controllers=frozenset({"memory", "pids"})),
            "has no cpu",
            "sudo systemctl edit user@.service: [Service] Delegate=cpu memory pids; then log in again",
        ),
        (BEST._replace(tun_failure="Permission denied"), "Permission denied", "sudo chmod 0666 /dev/net/tun"),
        (BEST._replace(has_network_program=False), "neither pasta nor", "sudo apt-get install passt"),
        (
            BEST._replace(first_port=1024),
            "no ports below 1024",
            "sudo sysctl -w net.ipv4.ip_unprivileged_port_start=80",
        ),
    ],
)
def test_what_is_weaker_is_a_warning_with_its_command(facts: RootlessFacts, said: str, fix: str) -> None:
    (finding,) = check_rootless(facts)
    assert (finding.status, finding.fix) == (FindingStatus.WARNING, fix)
    assert said in finding.message


def test_where_users_make_no_namespaces_that_is_the_one_problem() -> None:
    (finding,) = check_rootless(RootlessFacts("ann", "kernel.unprivileged_userns_clone=0"))
    assert finding.status is FindingStatus.PROBLEM
    assert finding.fix == "sudo sysctl -w kernel.unprivileged_userns_clone=1"


def test_the_machine_is_read_for_ranges_sysctls_and_ports(tmp_path: Path) -> None:
    facts = rootless(tmp_path)
    assert facts.missing_ranges == ("/etc/subuid", "/etc/subgid")
    assert (facts.forbidding, facts.first_port) == ("", 1024)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/subuid").write_text(f"{facts.user}:100000:65536\n")
    kernel, network = tmp_path / "proc/sys/kernel", tmp_path / "proc/sys/net/ipv4"
    for folder in (kernel, network):
        folder.mkdir(parents=True)
    (kernel / "apparmor_restrict_unprivileged_userns").write_text("1\n")
    (network / "ip_unprivileged_port_start").write_text("80\n")
    found = rootless(tmp_path)
    assert found.missing_ranges == ("/etc/subgid",)
    assert found.forbidding == "kernel.apparmor_restrict_unprivileged_userns=1"
    assert found.first_port == 80
