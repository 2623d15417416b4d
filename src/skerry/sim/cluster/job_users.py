"""Users of jobs and schedules in a simulated cloud: they create, cancel, delete, pause and run, by chance.

`skerry.sim.cluster.fault_injector` does these actions among its faults. Some jobs run an image that never
works (`skerry.sim.cluster.fault_plan`): those must fail.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from skerry.control.schedules.registry import ScheduleSettings
from skerry.model import errors
from skerry.model.jobs import Job, JobSpec
from skerry.model.schedules import JobTarget, OverlapPolicy, Schedule
from skerry.sim import workload_generator
from skerry.sim.cluster.cloud import SimulatedCloud
from skerry.sim.cluster.fault_plan import JOB_IMAGE
from skerry.sim.cluster.server import SimulatedServer
from skerry.sim.cluster.service_users import FaultAction

_BAD_IMAGE = "example.org/bad:crashes"
_PAUSES_S = 5.0  # between two looks at what is not paused


class JobUsers:
    """`later` does something about so many seconds from now."""

    def __init__(
        self, cloud: SimulatedCloud, chance: random.Random, later: Callable[[FaultAction, float], None]
    ) -> None:
        self._cloud = cloud
        self._chance = chance
        self._later = later
        self._made = 0

    def actions(self) -> dict[FaultAction, int]:
        """What users do, and how often in comparison."""
        return {
            self.create_a_job: 4,
            self.cancel_a_job: 1,
            self.delete_a_job: 1,
            self.destroy_a_try: 2,
            self.create_a_schedule: 1,
            self.run_a_schedule: 2,
            self.pause_a_schedule: 1,
            self.delete_a_schedule: 1,
        }

    async def create_a_job(self) -> None:
        self._made += 1
        name = f"job-{self._made}"
        spec = self._spec(name)
        await self._cloud.ask(lambda server: server.jobs.create(name, spec, actor="sim"))

    async def cancel_a_job(self) -> None:
        name = self._a_job().name
        await self._cloud.ask(lambda server: server.jobs.cancel(name, actor="sim"))

    async def delete_a_job(self) -> None:
        name = self._a_job().name
        await self._cloud.ask(lambda server: server.jobs.delete(name, actor="sim"))

    async def destroy_a_try(self) -> None:
        """Somebody destroys a try, which its job then makes again."""
        ids = [id for of_one in self._cloud.witness.jobs.tries.values() for id in of_one]
        if not ids:
            return
        id = self._chance.choice(ids)

        async def destroy(server: SimulatedServer) -> None:
            await server.instances.destroy(id, actor="sim")

        await self._cloud.ask(destroy)

    async def create_a_schedule(self) -> None:
        self._made += 1
        name = f"schedule-{self._made}"
        settings = ScheduleSettings(
            self._chance.choice(["* * * * *", "*/2 * * * *"]),
            JobTarget(self._spec(name)),
            overlap=self._chance.choice(list(OverlapPolicy)),
            window_s=self._chance.choice([0.0, 120.0, 3600.0]),
        )
        await self._cloud.ask(lambda server: server.schedules.create(name, settings, actor="sim"))

    async def run_a_schedule(self) -> None:
        name = self._a_schedule().name
        await self._cloud.ask(lambda server: server.schedules.run_now(name, actor="sim"))

    async def pause_a_schedule(self) -> None:
        name = self._a_schedule().name
        await self._cloud.ask(lambda server: server.schedules.set_paused(name, True, actor="sim"))

        async def resumed() -> None:
            await self._cloud.ask(lambda server: server.schedules.set_paused(name, False, actor="sim"))

        self._later(resumed, 30.0)

    async def delete_a_schedule(self) -> None:
        name = self._a_schedule().name
        await self._cloud.ask(lambda server: server.schedules.delete(name, actor="sim"))

    async def pause_all(self) -> None:
        """For ever: pause every schedule, so that the cloud can come to rest."""
        while True:
            for schedule in list(self._cloud.witness.jobs.schedules.values()):
                if not schedule.is_paused:
                    with suppress(errors.SkerryError):
                        await self._pause(schedule.name)
            await asyncio.sleep(_PAUSES_S)

    async def _pause(self, name: str) -> None:
        await self._cloud.ask(lambda server: server.schedules.set_paused(name, True, actor="sim"))

    def _a_job(self) -> Job:
        jobs = list(self._cloud.witness.jobs.jobs.values())
        if not jobs:
            raise errors.NotFound("there is no job")
        return self._chance.choice(jobs)

    def _a_schedule(self) -> Schedule:
        schedules = list(self._cloud.witness.jobs.schedules.values())
        if not schedules:
            raise errors.NotFound("there is no schedule")
        return self._chance.choice(schedules)

    def _spec(self, name: str) -> JobSpec:
        chance = self._chance
        [drawn] = workload_generator.draw_specs(1, chance)
        uri = _BAD_IMAGE if chance.random() < 0.1 else JOB_IMAGE
        return JobSpec(
            replace(drawn, name=name, uri=uri),
            completions=chance.randint(1, 6),
            parallelism=chance.randint(1, 3),
            retries=chance.choice([0, 1, 5]),
            deadline_s=chance.choice([None, None, 300.0]),
            keep_for_s=chance.choice([0.0, 60.0, 86_400.0]),
        )
