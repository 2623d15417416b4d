"""Measures the usage of instances now and then, as `Resources`, and reports changes.

Processor time is the average since the previous sample; memory and disk are current. Disks are sampled less
often, since without quotas every file has to be counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import InstanceId
from skerry.model.resources import MAX_AMOUNT, NO_RESOURCES, Gigabytes, Megabytes, Millicores, Resources
from skerry.node.agent.instances.backends import InstanceBackend

_MEGABYTE = 1024**2
_GIGABYTE = 1024**3
_DISK_EVERY_S = 30.0
# Changes smaller than this share, or this amount, are noise and are not reported.
_SHARE = 0.05
_LEAST = Resources(Millicores(5), Megabytes(2), Gigabytes(0))


@dataclass(slots=True)
class _UsageSample:
    """The previous sample."""

    run: float | None  # when the run began
    at: float
    cpu_ns: int
    disk_at: float
    disk_bytes: int
    resources: Resources = NO_RESOURCES


class UsageSampler:
    """Usage of all running instances."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._samples: dict[InstanceId, _UsageSample] = {}
        self._reported: dict[InstanceId, Resources] = {}

    @property
    def disk_bytes(self) -> int:
        """Disk space that all of them use."""
        return sum(sample.disk_bytes for sample in self._samples.values())

    def of(self, instance: InstanceId) -> Resources:
        sample = self._samples.get(instance)
        return NO_RESOURCES if sample is None else sample.resources

    async def sample(self, running: Mapping[InstanceId, tuple[InstanceBackend, str]]) -> set[InstanceId]:
        """Measure the running instances, by backend and name; returns those whose usage has changed."""
        for instance in self._samples.keys() - running.keys():
            del self._samples[instance]
            self._reported.pop(instance, None)
        changed = set()
        for instance, (backend, name) in running.items():
            try:
                resources = await self._measure(instance, backend, name)
            except (errors.SkerryError, OSError):
                continue  # it has just ended
            # The first is always reported: until then nothing is known of it.
            if instance not in self._reported or _differs(self._reported[instance], resources):
                self._reported[instance] = resources
                changed.add(instance)
        return changed

    async def _measure(self, instance: InstanceId, backend: InstanceBackend, name: str) -> Resources:
        now, last = self._clock.monotonic(), self._samples.get(instance)
        run = backend.get(name).started_at
        used = backend.usage(name)
        if last is None or now - last.disk_at >= _DISK_EVERY_S:
            disk_at, disk_bytes = now, (await backend.stats(name)).disk_bytes
        else:
            disk_at, disk_bytes = last.disk_at, last.disk_bytes
        cpu = 0
        if last is not None and last.run == run and now > last.at:
            cpu = round((used.cpu_ns - last.cpu_ns) / (now - last.at) / 1e6)
        resources = Resources(
            Millicores(min(max(cpu, 0), MAX_AMOUNT)),
            # Never 0 of what runs: that would read as not measured.
            Megabytes(max(round(used.memory_bytes / _MEGABYTE), min(used.memory_bytes, 1))),
            Gigabytes(round(disk_bytes / _GIGABYTE)),
        )
        self._samples[instance] = _UsageSample(run, now, used.cpu_ns, disk_at, disk_bytes, resources)
        await asyncio.sleep(0)  # there may be many: let other tasks run
        return resources


def _differs(before: Resources, now: Resources) -> bool:
    """True if the change is worth a report."""
    return any(
        abs(new - old) > max(least, old * _SHARE)
        for (_, _, old), (_, _, new), (_, _, least) in zip(
            before.parts(), now.parts(), _LEAST.parts(), strict=True
        )
    )
