"""Facts about processes, from /proc."""

from __future__ import annotations

from pathlib import Path


def start_time_of(pid: int) -> int:
    """When a process started, in ticks since boot. Raises OSError if there is none of that pid."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
