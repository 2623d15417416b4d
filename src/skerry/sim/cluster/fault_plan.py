"""Fault plans of instances: how long a start takes, and how and when a run ends.

A plan is drawn from a seed and the key of the run, so it is the same in every repetition of a simulation,
whatever else happens. Used by `skerry.sim.cluster.node`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from skerry.model.ids import InstanceId

UNHEALTHY_FOR_S = 10.0  # how long the checks of a run fail after it was ready


class FaultPlan(msgspec.Struct, frozen=True):
    """One run, or a start that fails."""

    start_s: float = 0.5  # fetching the image and making the container
    refusal: str = ""  # why it cannot be started, if it cannot
    runs_s: float | None = None  # until it ends by itself; None: it does not
    exit_code: int = 0
    stop_s: float = 0.2  # from the request to stop to the end
    ready_s: float | None = 0.2  # from the start of the run until its checks pass; None: they never do
    unhealthy_after_s: float | None = None  # from then until they fail for `UNHEALTHY_FOR_S`

    def passes(self, started_at: float, now: float) -> bool:
        """True if the checks of a run that started then pass now."""
        changes = [at for at in self.health_changes(started_at) if at <= now]
        return self.ready_s is not None and len(changes) % 2 == 1

    def health_changes(self, started_at: float) -> list[float]:
        """When the checks of a run that started then begin to pass, to fail, and to pass again."""
        if self.ready_s is None:
            return []
        ready_at = started_at + self.ready_s
        if self.unhealthy_after_s is None:
            return [ready_at]
        return [
            ready_at,
            ready_at + self.unhealthy_after_s,
            ready_at + self.unhealthy_after_s + UNHEALTHY_FOR_S,
        ]


class RunKey(msgspec.Struct, frozen=True):
    """Identifies a run; `number` counts the starts of one generation."""

    instance: InstanceId
    generation: int
    number: int
    image: str = ""


# Images that are broken, and how.
BAD_IMAGES = {
    "example.org/bad:unstartable": FaultPlan(refusal="the image cannot be pulled"),
    "example.org/bad:crashes": FaultPlan(runs_s=0.5, exit_code=1),
    "example.org/bad:unready": FaultPlan(ready_s=None),
}

# The image of jobs, which ends by itself.
JOB_IMAGE = "example.org/job:1"

FaultPlanner = Callable[[RunKey], FaultPlan]


def healthy_runs(start_s: float = 0.5) -> FaultPlanner:
    """Everything starts after `start_s` and runs for ever."""
    plan = FaultPlan(start_s=start_s)
    return lambda run: plan


class RandomFaultPlanner(msgspec.Struct):
    """Most runs are healthy, some end or crash, and some cannot be started; with `is_calm` all are healthy.

    An image of `BAD_IMAGES` never works: it cannot be started, crashes at once or is never ready. `JOB_IMAGE`
    ends after a while, most of the time with exit code 0.
    """

    seed: int
    start_s: float = 0.5
    refused: float = 0.02  # shares of all runs
    crashed: float = 0.08
    ended: float = 0.03
    unhealthy: float = 0.1  # of healthy runs
    is_calm: bool = False
    job_failed: float = 0.2  # of the runs of jobs

    def __call__(self, run: RunKey) -> FaultPlan:
        chance = random.Random(f"{self.seed}/{run.instance}/{run.generation}/{run.number}")  # noqa: S311 - a simulation
        start_s = self.start_s * chance.uniform(0.5, 2.0)
        which = chance.random()
        if run.image in BAD_IMAGES:
            return replace(BAD_IMAGES[run.image], start_s=start_s)
        if run.image == JOB_IMAGE:
            is_bad = not self.is_calm and which < self.job_failed
            return FaultPlan(start_s, runs_s=chance.expovariate(1 / 10.0), exit_code=int(is_bad))
        if self.is_calm or which > self.refused + self.crashed + self.ended:
            unhealthy_after_s = None
            if not self.is_calm and chance.random() < self.unhealthy:
                unhealthy_after_s = chance.expovariate(1 / 20.0)
            return FaultPlan(start_s, unhealthy_after_s=unhealthy_after_s)
        if which < self.refused:
            return FaultPlan(start_s, refusal="the image cannot be pulled")
        exit_code = chance.choice([1, 137]) if which < self.refused + self.crashed else 0
        return FaultPlan(start_s, runs_s=chance.expovariate(1 / 20.0), exit_code=exit_code)
