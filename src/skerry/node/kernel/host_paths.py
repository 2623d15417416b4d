"""Paths that tell of the host or change it, hidden from or read-only for everything that runs in a cell.

`skerry.node.launcher.child.cell_mounts` applies them to cells and `skerry.node.containers.confinement` to
containers, each with further ones of its own.
"""

from __future__ import annotations

from typing import Final

# Of the host and not of what runs on it, and nobody's business there.
MASKED_PATHS: Final = (
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmcore",
    "/sys/firmware",
)
# Root without a single capability may still write to these, as the owner of the files.
READ_ONLY_PATHS: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
