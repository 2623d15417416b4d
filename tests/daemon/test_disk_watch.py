"""The disk of a process that starts."""

from __future__ import annotations

from pathlib import Path

from skerry.daemon import role_parts
from skerry.kit import disk_reserve
from skerry.kit.clock import SystemClock
from skerry.kit.disk_reserve import DiskReserve
from skerry.kit.tasks import TaskSupervisor


async def test_a_reserve_that_is_made_at_the_first_start_is_no_shortage_for_those_who_come_early(
    tmp_path: Path,
) -> None:
    with disk_reserve.installed(DiskReserve(tmp_path, 1 << 20)):
        async with TaskSupervisor("test", clock=SystemClock()) as loops:
            await role_parts.watch_disk(tmp_path, loops)
            assert disk_reserve.shortage() == ""
