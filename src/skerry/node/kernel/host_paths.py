"""Paths of the host that are masked or read-only in every cell and container.

`skerry.node.launcher.child.cell_mounts` applies them to cells and `skerry.node.containers.confinement` to
containers, each with further ones of its own.
"""

from __future__ import annotations

from typing import Final

# They describe the host, not the cell.
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
# Root without any capability could still write to these, as the owner of the files.
READ_ONLY_PATHS: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
