"""What the endpoints of this room work with, given when the app is built."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.control.jobs.registry import JobRegistry
from skerry.control.schedules.registry import ScheduleRegistry
from skerry.kit.clock import Clock


@dataclass(frozen=True, slots=True)
class JobContext:
    """The first argument of every endpoint in this room."""

    jobs: JobRegistry
    schedules: ScheduleRegistry
    clock: Clock
