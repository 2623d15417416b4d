"""Checks of what a node of an ordinary user lacks on this machine. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from skerry.cli.doctor.facts import RootlessFacts
from skerry.cli.doctor.findings import Finding, ok, problem, warning

_AREA: Final = "rootless"
_CONTROLLERS: Final = ("cpu", "memory", "pids")
_FIRST_PORT: Final = 1024
_PORT_SYSCTL: Final = "net.ipv4.ip_unprivileged_port_start"
_ALLOWING: Final = {
    "user.max_user_namespaces": "65536",
    "kernel.unprivileged_userns_clone": "1",
    "kernel.apparmor_restrict_unprivileged_userns": "0",
}
FORBIDDING: Final = {  # the values with which users make no namespaces
    "user.max_user_namespaces": "0",
    "kernel.unprivileged_userns_clone": "0",
    "kernel.apparmor_restrict_unprivileged_userns": "1",
}


def check_rootless(facts: RootlessFacts) -> list[Finding]:
    """What is weaker than it could be for this user, with the command that changes it."""
    if facts.forbidding:
        sysctl = facts.forbidding.partition("=")[0]
        message = f"users may make no user namespaces ({facts.forbidding}): nothing can run without root"
        return [problem(_AREA, message, f"sudo sysctl -w {sysctl}={_ALLOWING[sysctl]}")]
    found = [*_check_ids(facts), *_check_limits(facts), *_check_network(facts)]
    if facts.first_port >= _FIRST_PORT:
        message = f"containers publish no ports below {facts.first_port}"
        found.append(warning(_AREA, message, f"sudo sysctl -w {_PORT_SYSCTL}=80"))
    return found or [ok(_AREA, f"{facts.user} has all that a node without root can have")]


def _check_ids(facts: RootlessFacts) -> Iterator[Finding]:
    if facts.missing_programs:
        message = f"all cells have one user: {' and '.join(facts.missing_programs)} not found"
        yield warning(_AREA, message, "sudo apt-get install uidmap")
    if facts.missing_ranges:
        message = f"all cells have one user: no ids for {facts.user} in {' and '.join(facts.missing_ranges)}"
        ranges = "--add-subuids 100000-165535 --add-subgids 100000-165535"
        yield warning(_AREA, message, f"sudo usermod {ranges} {facts.user}")


def _check_limits(facts: RootlessFacts) -> Iterator[Finding]:
    if facts.controllers is None:
        message = "limits of cells are watched and not enforced by the kernel: no cgroup is delegated"
        yield warning(_AREA, message, "systemd-run --user --scope -p Delegate=yes skerry up")
    elif missing := [each for each in _CONTROLLERS if each not in facts.controllers]:
        message = f"the delegated cgroup has no {', '.join(missing)}"
        yield warning(
            _AREA,
            message,
            "sudo systemctl edit user@.service: [Service] Delegate=cpu memory pids; then log in again",
        )


def _check_network(facts: RootlessFacts) -> Iterator[Finding]:
    if facts.tun_failure:
        message = f"containers reach nothing outside this machine: /dev/net/tun: {facts.tun_failure}"
        yield warning(_AREA, message, "sudo chmod 0666 /dev/net/tun")
    if not facts.has_network_program:
        message = "containers reach nothing outside this machine: neither pasta nor slirp4netns is installed"
        yield warning(_AREA, message, "sudo apt-get install passt")
