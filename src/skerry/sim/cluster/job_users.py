"""Users of jobs and schedules in a simulated cloud: they create, cancel, delete, pause and run, by chance.

Some jobs run an image that never works (`skerry.sim.cluster.fault_plan`): those must fail.
"""

from __future__ import annotations

from msgspec.structs import replace

from skerry.control.schedules.registry import ScheduleSettings
from skerry.model.jobs import Job, JobSpec
from skerry.model.schedules import JobTarget, OverlapPolicy, Schedule
from skerry.sim import workload_generator
from skerry.sim.cluster.fault_plan import JOB_IMAGE
from skerry.sim.cluster.users import Action, SimulatedUsers

_BAD_IMAGE = "example.org/bad:crashes"
_PAUSE_EVERY_S = 5.0


class JobUsers(SimulatedUsers):
    """Users of jobs and schedules."""

    def actions(self) -> dict[Action, int]:
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
        name = self._new_name("job")
        spec = self._spec(name)
        await self._request(lambda server: server.jobs.create(name, spec, actor="sim"))

    async def cancel_a_job(self) -> None:
        name = self._a_job().name
        await self._request(lambda server: server.jobs.cancel(name, actor="sim"))

    async def delete_a_job(self) -> None:
        name = self._a_job().name
        await self._request(lambda server: server.jobs.delete(name, actor="sim"))

    async def destroy_a_try(self) -> None:
        """Somebody destroys a try, which its job then makes again."""
        id = self._choose_instance(self._cloud.checker.jobs.tries)
        await self._request(lambda server: server.instances.destroy(id, actor="sim"))

    async def create_a_schedule(self) -> None:
        name = self._new_name("schedule")
        settings = ScheduleSettings(
            self._chance.choice(["* * * * *", "*/2 * * * *"]),
            JobTarget(self._spec(name)),
            overlap=self._chance.choice(list(OverlapPolicy)),
            window_s=self._chance.choice([0.0, 120.0, 3600.0]),
        )
        await self._request(lambda server: server.schedules.create(name, settings, actor="sim"))

    async def run_a_schedule(self) -> None:
        name = self._a_schedule().name
        await self._request(lambda server: server.schedules.run_now(name, actor="sim"))

    async def pause_a_schedule(self) -> None:
        name = self._a_schedule().name
        await self._set_paused(name, True)
        self._request_later(lambda server: server.schedules.set_paused(name, False, actor="sim"), 30.0)

    async def delete_a_schedule(self) -> None:
        name = self._a_schedule().name
        await self._request(lambda server: server.schedules.delete(name, actor="sim"))

    async def pause_all(self) -> None:
        """For ever: pause every schedule, so that the cloud can converge."""

        async def pause(schedule: Schedule) -> None:
            if not schedule.is_paused:
                await self._set_paused(schedule.name, True)

        await self._repeat_for_each(self._cloud.checker.jobs.schedules, pause, every_s=_PAUSE_EVERY_S)

    async def _set_paused(self, name: str, is_paused: bool) -> None:
        await self._request(lambda server: server.schedules.set_paused(name, is_paused, actor="sim"))

    def _a_job(self) -> Job:
        return self._choose("job", self._cloud.checker.jobs.jobs.values())

    def _a_schedule(self) -> Schedule:
        return self._choose("schedule", self._cloud.checker.jobs.schedules.values())

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
