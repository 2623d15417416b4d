"""Usage of instances: what is measured, and which of it is worth a report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.ids import InstanceId
from skerry.model.resources import NO_RESOURCES, Gigabytes, Megabytes, Millicores, Resources
from skerry.node.agent.instances.usage import UsageSampler

WEB = InstanceId("web")


class FakeBackend:
    """One container, with counters that a test sets."""

    def __init__(self) -> None:
        self.started_at = 1.0
        self.cpu_ns = 0
        self.memory_bytes = 0
        self.has_ended = False

    def get(self, name: str) -> Any:
        if self.has_ended:
            raise errors.NotFound("it has just ended")
        return SimpleNamespace(started_at=self.started_at)

    def usage(self, name: str) -> Any:
        return SimpleNamespace(cpu_ns=self.cpu_ns, memory_bytes=self.memory_bytes)

    async def stats(self, name: str) -> Any:
        return SimpleNamespace(disk_bytes=0)


class Ground:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sampler = UsageSampler(self.clock)
        self.backend = FakeBackend()

    async def sample(self, *, memory_bytes: int, cpu_ns: int = 0, after_s: float = 10.0) -> set[InstanceId]:
        self.clock.advance(after_s)
        self.backend.memory_bytes = memory_bytes
        self.backend.cpu_ns += cpu_ns
        return await self.sampler.sample({WEB: (cast(Any, self.backend), "i-web")})


async def test_a_first_measurement_of_two_megabytes_or_less_is_reported() -> None:
    for memory_bytes, shown in ((2 * 2**20, 2), (2**20, 1), (4096, 1)):
        ground = Ground()
        assert await ground.sample(memory_bytes=memory_bytes) == {WEB}, memory_bytes
        assert ground.sampler.of(WEB) == Resources(Millicores(0), Megabytes(shown), Gigabytes(0))


async def test_a_change_of_two_megabytes_or_less_is_not_reported_and_a_larger_one_is() -> None:
    ground = Ground()
    await ground.sample(memory_bytes=2**20)
    assert await ground.sample(memory_bytes=3 * 2**20) == set()
    assert await ground.sample(memory_bytes=4 * 2**20) == {WEB}
    assert await ground.sample(memory_bytes=4 * 2**20) == set()


async def test_processor_time_is_the_average_since_the_sample_before_and_of_one_run() -> None:
    ground = Ground()
    await ground.sample(memory_bytes=2**20, cpu_ns=10**12)
    await ground.sample(memory_bytes=2**20, cpu_ns=5 * 10**9)
    assert ground.sampler.of(WEB).cpu == 500
    ground.backend.started_at, ground.backend.cpu_ns = 2.0, 0
    await ground.sample(memory_bytes=2**20, cpu_ns=10**9)
    assert ground.sampler.of(WEB).cpu == 0


async def test_one_that_stopped_is_reported_anew_when_it_runs_again() -> None:
    ground = Ground()
    await ground.sample(memory_bytes=2**20)
    assert await ground.sampler.sample({}) == set()
    assert ground.sampler.of(WEB) == NO_RESOURCES
    assert await ground.sample(memory_bytes=2**20) == {WEB}


async def test_one_that_ends_while_it_is_measured_is_left_out() -> None:
    ground = Ground()
    ground.backend.has_ended = True
    assert await ground.sample(memory_bytes=2**20) == set()
