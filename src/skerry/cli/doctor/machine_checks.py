"""Checks of this machine: cgroups, kernel, programs, ports, disk, clock and leftovers. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

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
    SkerryFacts,
)
from skerry.cli.doctor.findings import Finding, ok, problem, skipped, warning

_OLDEST_KERNEL: Final = (5, 10)
_USERNS_KERNEL: Final = (5, 19)  # id-mapped layers under an overlay
_MACHINES: Final = ("x86_64", "aarch64")
_FEW_DESCRIPTORS: Final = 8192
_LOW_BYTES: Final = 2 << 30
_LOW_SHARE: Final = 0.05
_LEAST_BYTES: Final = 256 << 20  # an image and its container need about as much
_LOW_INODES: Final = 0.02
_MEGABYTE: Final = 1 << 20
_DRIFT_S: Final = 2.0  # from here on times in tables are misleading
_WRONG_S: Final = 30.0  # from here on proofs of the market and new certificates are refused
_MOST_LISTED: Final = 5

# Programs, the Debian package of each, and what is missing without it.
PROGRAMS: Final = (
    ("ip", "iproute2", "containers have no network"),
    ("nft", "nftables", "containers have no network"),
    ("mke2fs", "e2fsprogs", "there are no volumes and no disk limits"),
)
OPTIONAL_PROGRAMS: Final = (
    ("haproxy", "haproxy", "routes are not served here"),
    ("wg", "wireguard-tools", "this machine is not in the mesh"),
    ("node", "nodejs", "functions for Node.js do not run here"),
    ("catatonit", "catatonit", "containers cannot have an init (--init)"),
)
ROOT_PROGRAMS: Final = frozenset(("mke2fs", "haproxy"))  # of no use to a node of an ordinary user
RUNTIMES: Final = ("runc", "crun")


def check_skerry(facts: SkerryFacts, remote: str = "") -> list[Finding]:
    """`remote`: the server elsewhere that commands use."""
    if facts.failure and remote:
        return [ok("skerry", f"none runs here with the data folder {facts.folder}; commands use {remote}")]
    if facts.is_private:
        return [skipped("skerry", facts.failure, "sudo skerry doctor")]
    if facts.failure:
        return [warning("skerry", facts.failure, "skerry up")]
    return [ok("skerry", f"runs with the data folder {facts.folder} (skerry {facts.role}, pid {facts.pid})")]


def check_root(is_root: bool) -> list[Finding]:
    if is_root:
        return []
    message = (
        "without root there are no volumes, devices, limits of disk and routes, nothing is sold, and some "
        "checks are skipped"
    )
    return [warning("root", message, "sudo skerry up")]


def check_cgroups(facts: CgroupFacts) -> list[Finding]:
    if facts.failure:
        fix = "mount -t cgroup2 none /sys/fs/cgroup"
        if "cgroup_enable=memory" in facts.failure:
            fix = "add cgroup_enable=memory to the kernel's command line, and reboot"
        return [problem("cgroups", facts.failure, fix)]
    return [ok("cgroups", f"{facts.kind}: cells can be limited")]


def check_kernel(facts: KernelFacts, *, is_root: bool = True) -> list[Finding]:
    found: list[Finding] = []
    if _version(facts.release) < _OLDEST_KERNEL:
        oldest = ".".join(map(str, _OLDEST_KERNEL))
        found.append(
            problem("kernel", f"Linux {facts.release} is older than {oldest}", "apt-get upgrade && reboot")
        )
    if facts.machine not in _MACHINES:
        message = f"containers run on {' and '.join(_MACHINES)} only, and this is {facts.machine}"
        found.append(problem("kernel", message, "run the node on another machine"))
    if "overlay" not in facts.file_systems:
        found.append(
            problem("kernel", "there is no overlay file system, so no containers", "modprobe overlay")
        )
    if not facts.max_user_namespaces:
        message = "user namespaces are off: root in a container is root on this machine"
        found.append(warning("kernel", message, "sysctl -w user.max_user_namespaces=65536"))
    elif _version(facts.release) < _USERNS_KERNEL:
        message = f"Linux {facts.release} has no id-mapped layers: containers have no user namespaces"
        found.append(warning("kernel", message, "upgrade to Linux 5.19 or later"))
    if not facts.has_seccomp:
        message = "there is no seccomp: system calls of containers are not limited"
        found.append(problem("kernel", message, "use a kernel with CONFIG_SECCOMP_FILTER"))
    if is_root and not facts.has_loop_devices:
        message = "there are no loop devices: no volumes, and no disk limits"
        found.append(warning("kernel", message, "modprobe loop"))
    if facts.descriptors < _FEW_DESCRIPTORS:
        message = f"a process may open only {facts.descriptors} files, which limits connections"
        found.append(warning("kernel", message, "ulimit -n 65536, or LimitNOFILE= of the service"))
    return found or [ok("kernel", f"Linux {facts.release} has all that is needed")]


def check_programs(facts: ProgramFacts, kernel: KernelFacts | None, *, is_root: bool = True) -> list[Finding]:
    of_no_use = frozenset() if is_root else ROOT_PROGRAMS
    found = [
        problem("programs", f"{name} is not installed: {effect}", f"apt-get install {package}")
        for name, package, effect in PROGRAMS
        if name not in of_no_use and not facts.paths.get(name)
    ]
    found += [
        warning("programs", f"{name} is not installed: {effect}", f"apt-get install {package}")
        for name, package, effect in OPTIONAL_PROGRAMS
        if name not in of_no_use and not facts.paths.get(name)
    ]
    if facts.paths.get("wg") and kernel is not None:
        found += _check_wireguard(facts, kernel)
    return found or [ok("programs", f"all are installed: {', '.join(sorted(facts.paths))}")]


def _check_wireguard(facts: ProgramFacts, kernel: KernelFacts) -> Iterator[Finding]:
    if kernel.has_wireguard is False:
        if not facts.paths.get("wireguard-go"):
            message = "the kernel has no WireGuard, and wireguard-go is not installed: no mesh"
            yield warning("programs", message, "apt-get install wireguard-go")
        elif not kernel.has_tun:
            message = "wireguard-go needs the device /dev/net/tun: no mesh"
            yield warning("programs", message, "modprobe tun")


def check_runtimes(facts: ProgramFacts) -> list[Finding]:
    if not facts.runtimes:
        message = "no OCI runtime is installed: there are no containers"
        return [problem("runtime", message, "apt-get install runc")]
    found = []
    for runtime in facts.runtimes:
        if runtime.warning:
            fix = f"apt-get update && apt-get install --only-upgrade {runtime.name}"
            found.append(warning("runtime", runtime.warning, fix))
        else:
            found.append(ok("runtime", f"{runtime.name} {runtime.version}: no known vulnerabilities"))
    return found


def check_ports(ports: Sequence[PortFacts]) -> list[Finding]:
    return [_check_port(port) for port in ports]


def _check_port(port: PortFacts) -> Finding:
    if port.is_own:
        return ok("ports", f"{port.address} ({port.setting}): Skerry listens")
    if not port.failure:
        return ok("ports", f"{port.address} ({port.setting}) is free")
    host, _, number = port.address.rpartition(":")
    message = (
        f"{port.address} ({port.setting}) {f'is in use by {port.holder}' if port.holder else port.failure}"
    )
    option = port.setting.partition(".")[0]
    other = int(number) + 1 if number.isdigit() else 0
    return problem("ports", message, f"skerry up --{option} {host}:{other}, or end that program")


def check_disk(facts: DiskFacts) -> list[Finding]:
    where = f"the disk of {facts.folder}"
    if facts.is_read_only:
        return [
            problem("disk", f"{where} is mounted read-only", f"mount -o remount,rw {facts.folder}; see dmesg")
        ]
    free = f"{facts.free_bytes / _MEGABYTE:,.0f} MB of {facts.total_bytes / _MEGABYTE:,.0f} MB are free"
    fix = "skerry image list, skerry image remove IMAGE; or another disk with --data"
    if facts.free_bytes < facts.needed_bytes:
        return [problem("disk", f"{where} is full: {free}", fix)]
    if facts.total_inodes and facts.free_inodes < facts.total_inodes * _LOW_INODES:
        message = f"{where} has few inodes left: {facts.free_inodes} of {facts.total_inodes}"
        return [warning("disk", message, "remove small files; skerry image list")]
    if facts.free_bytes < max(_LEAST_BYTES, min(_LOW_BYTES, facts.total_bytes * _LOW_SHARE)):
        return [warning("disk", f"{where} is nearly full: {free}", fix)]
    return [ok("disk", f"{free} on {where}")]


def check_clock(facts: ClockFacts) -> list[Finding]:
    if facts.is_synchronized is None:
        return [skipped("clock", "the kernel does not say whether the clock is synchronized")]
    if facts.is_synchronized:
        return [ok("clock", "synchronized by NTP")]
    fix = "timedatectl set-ntp true" if facts.has_timedatectl else "apt-get install chrony"
    return [warning("clock", "not synchronized by NTP: certificates and tokens depend on the time", fix)]


def check_offsets(offsets: Sequence[ClockOffset], clock: ClockFacts | None) -> list[Finding]:
    """The clocks of servers and peers, compared with ours."""
    fix = "timedatectl set-ntp true" if clock and clock.has_timedatectl else "apt-get install chrony"
    found = []
    for offset in offsets:
        least = abs(offset.seconds) - offset.uncertainty_s  # whatever the network did, it is at least that
        direction = "ahead of" if offset.seconds > 0 else "behind"
        message = f"{offset.name} is {abs(offset.seconds):.1f} s {direction} this machine"
        if least > _WRONG_S:
            found.append(problem("clock", f"{message}: its certificates and signatures are refused", fix))
        elif least > _DRIFT_S:
            found.append(warning("clock", message, fix))
        else:
            found.append(ok("clock", f"{offset.name} has the same time"))
    return found


def check_leftovers(facts: LeftoverFacts) -> list[Finding]:
    if not facts.is_complete:  # which Skerrys run is not known
        return [skipped("leftovers", "only root sees which Skerrys run", "sudo skerry doctor")]
    by_key: defaultdict[str, list[Leftover]] = defaultdict(list)
    for one in facts.found:
        if one.key not in facts.running:
            by_key[one.key].append(one)
    stopped = by_key.pop(facts.own, None)
    found = []
    if stopped:
        state = "still run" if any(one.has_processes for one in stopped) else "have ended"
        message = (
            f"of the Skerry of this data folder, which is stopped, containers and cells {state}: the next "
        )
        found.append(ok("leftovers", f"{message}start takes all of it over"))
    for key, left in sorted(by_key.items()):
        if any(one.has_processes for one in left):
            message = f"processes run in cells of a Skerry that does not run (key {key}): {_list(left)}"
            found.append(warning("leftovers", message, "start that Skerry again with its --data"))
        else:
            message = f"left by a Skerry that does not run (key {key}): {_list(left)}"
            found.append(warning("leftovers", message, _removal(left)))
    return found or [ok("leftovers", "none: every link, table and cgroup belongs to a Skerry that runs")]


def _list(left: Sequence[Leftover]) -> str:
    names = [f"{one.kind} {one.name}" for one in left]
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _removal(left: Sequence[Leftover]) -> str:
    """One command for all of a kind. Links of containers go with their bridge."""
    names = {kind: [one.name for one in left if one.kind == kind] for kind in ("link", "cgroup", "folder")}
    tables = "; ".join(f"delete table {one.family} {one.name}" for one in left if one.kind == "table")
    commands = [f"ip link delete {name}" for name in names["link"] if name[:3] in ("sk-", "sw-")]
    if tables:
        commands.append(f"nft '{tables}'")
    if names["cgroup"]:
        commands.append(f"find {' '.join(names['cgroup'])} -depth -type d -exec rmdir {{}} +")
    if names["folder"]:
        commands.append(f"rm -r {' '.join(names['folder'])}")
    return "; ".join(commands)


def check_contexts(facts: ContextFacts) -> list[Finding]:
    if facts.failure:
        return [problem("contexts", facts.failure, f"rm {facts.path}")]
    if facts.is_open_to_others:
        message = f"other users can read {facts.path}, and the tokens in it"
        return [problem("contexts", message, f"chmod 600 {facts.path}")]
    return [ok("contexts", f"{facts.known}, of which '{facts.current}' is used")] if facts.known else []


def _version(release: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)
