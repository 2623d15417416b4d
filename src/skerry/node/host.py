"""The machine of a node: its capacity, and its usage as a whole, by psutil.

Cells measure their own usage (`skerry.node.cgroups`). The cgroup version is detected elsewhere and passed in.
How much of the machine is offered is decided elsewhere.
"""

from __future__ import annotations

import platform
from pathlib import Path

import msgspec
import psutil

from skerry.model.resources import MAX_AMOUNT, Gigabytes, Megabytes, Millicores, Resources

# Names of architectures as in Go and image registries.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MILLICORES = 1000
_MEGABYTE = 1024**2
_GIGABYTE = 1024**3
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostInfo(msgspec.Struct, frozen=True):
    """Properties of a machine that do not change while it is up."""

    architecture: str
    system: str
    kernel: str
    boot_id: str
    cgroups: str  # unified, hybrid or legacy
    runtime: str  # container runtime with its version; empty if there is none
    cpus: int
    memory_bytes: int
    disk_bytes: int  # of the file system that the data folder is on


class HostUsage(msgspec.Struct, frozen=True):
    """Usage at one moment."""

    cpu_busy_s: float  # of all cpus together, since boot
    load: tuple[float, float, float]  # over 1, 5 and 15 minutes
    memory_available_bytes: int
    disk_free_bytes: int


def boot_id() -> str:
    """Changes with every boot."""
    return _BOOT_ID.read_text().strip()


def architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def system() -> str:
    return platform.system().lower()


def describe(data: Path, cgroups: str, runtime: str = "") -> HostInfo:
    """Describe this machine, with `data` as its data folder."""
    return HostInfo(
        architecture=architecture(),
        system=system(),
        kernel=platform.release(),
        boot_id=boot_id(),
        cgroups=cgroups,
        runtime=runtime,
        cpus=_cpus(),
        memory_bytes=psutil.virtual_memory().total,
        disk_bytes=psutil.disk_usage(str(data)).total,
    )


def measure(data: Path) -> HostUsage:
    """Measure the usage of this machine."""
    times = psutil.cpu_times()
    return HostUsage(
        # user and nice include guest time; iowait is idle.
        cpu_busy_s=times.user + times.nice + times.system + times.irq + times.softirq + times.steal,
        load=psutil.getloadavg(),
        memory_available_bytes=psutil.virtual_memory().available,
        disk_free_bytes=psutil.disk_usage(str(data)).free,
    )


def usable_resources(data: Path, *, used_bytes: int = 0, reserved_mb: int = 0) -> Resources:
    """Resources of this machine that cells can use: memory without `reserved_mb`; free disk plus
    `used_bytes`, which cells use already. How much is offered is decided elsewhere."""
    free_bytes = psutil.disk_usage(str(data)).free + used_bytes
    return Resources(
        Millicores(_cpus() * _MILLICORES),
        Megabytes(min(max(0, psutil.virtual_memory().total // _MEGABYTE - reserved_mb), MAX_AMOUNT)),
        Gigabytes(min(free_bytes // _GIGABYTE, MAX_AMOUNT)),
    )


def _cpus() -> int:
    """Cpus in the affinity mask of this process, which cells inherit."""
    return len(psutil.Process().cpu_affinity() or ())
