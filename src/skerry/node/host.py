"""The machine that a node is: what it has, which stays, and what of it is in use, which does not.

Cells count what they use themselves (`skerry.node.cgroups`); this is the host as a whole, by psutil. Which
kind of cgroups it has is found out elsewhere and passed in. Nothing here decides how much may be given away.
"""

from __future__ import annotations

import platform
from pathlib import Path

import msgspec
import psutil

from skerry.model.resources import MAX_AMOUNT, Gigabytes, Megabytes, Millicores, Resources

# As the Go world, and with it every image registry, writes them.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MILLICORES = 1000
_MEGABYTE = 1024**2
_GIGABYTE = 1024**3
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HostInfo(msgspec.Struct, frozen=True):
    """What a machine has, from one start of it to the next."""

    architecture: str
    system: str
    kernel: str
    boot_id: str
    cgroups: str  # unified, hybrid or legacy
    runtime: str  # of containers, with its version; empty if there is none
    cpus: int
    memory_bytes: int
    disk_bytes: int  # of the file system that the data folder is on


class HostUsage(msgspec.Struct, frozen=True):
    """What was in use at one moment."""

    cpu_busy_s: float  # of all cpus together, since the machine started
    load: tuple[float, float, float]  # over 1, 5 and 15 minutes
    memory_available_bytes: int
    disk_free_bytes: int


def boot_id() -> str:
    """Differs from one start of the machine to the next."""
    return _BOOT_ID.read_text().strip()


def architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def system() -> str:
    return platform.system().lower()


def describe(data: Path, cgroups: str, runtime: str = "") -> HostInfo:
    """This machine, with `data` as its data folder."""
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
    """What is in use on this machine now."""
    times = psutil.cpu_times()
    return HostUsage(
        # Guests are counted in user and nice already; waiting for a disk is idleness.
        cpu_busy_s=times.user + times.nice + times.system + times.irq + times.softirq + times.steal,
        load=psutil.getloadavg(),
        memory_available_bytes=psutil.virtual_memory().available,
        disk_free_bytes=psutil.disk_usage(str(data)).free,
    )


def usable_resources(data: Path, *, used_bytes: int = 0, reserved_mb: int = 0) -> Resources:
    """All of this machine that can be given to cells: of the disk what is free, and `used_bytes`, which cells
    have written already; of the memory all but `reserved_mb`. How much is given away is for others to say."""
    free_bytes = psutil.disk_usage(str(data)).free + used_bytes
    return Resources(
        Millicores(_cpus() * _MILLICORES),
        Megabytes(min(max(0, psutil.virtual_memory().total // _MEGABYTE - reserved_mb), MAX_AMOUNT)),
        Gigabytes(min(free_bytes // _GIGABYTE, MAX_AMOUNT)),
    )


def _cpus() -> int:
    """Cells inherit which cpus this process may use."""
    return len(psutil.Process().cpu_affinity() or ())
