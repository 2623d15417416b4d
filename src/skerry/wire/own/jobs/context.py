"""The context of the endpoints of jobs and schedules, which they get when the application is built."""

from __future__ import annotations

import msgspec

from skerry.control.jobs.registry import JobRegistry
from skerry.control.schedules.registry import ScheduleRegistry
from skerry.kit.clock import Clock


class JobContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    jobs: JobRegistry
    schedules: ScheduleRegistry
    clock: Clock
