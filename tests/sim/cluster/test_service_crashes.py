"""The leader is killed at every write about a service, before or after it: another ends what it began."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace

from skerry.control.services.requests import ServiceSpec
from skerry.model.services import RevisionOutcome, Service, UpdatePolicy
from skerry.model.statuses import TERMINAL
from skerry.sim import simulated_time
from skerry.sim.cluster.cloud import SimulatedCloud
from skerry.sim.cluster.fault_plan import RandomFaultPlanner
from skerry.store.protocol import Expect, Op
from tests.sim.making import cloud_of, settled, spec
from tests.support.simulated import passes

QUICK = UpdatePolicy(min_ready_s=1.0, drain_s=1.0, deadline_s=60.0)
RECORD = "service/default/web"
BAD = "example.org/bad:crashes"


class Guillotine:
    """Kills the leader at its write number `at` about the service, before or after it is done."""

    def __init__(self, cloud: SimulatedCloud, at: int = 0, *, is_done: bool = False) -> None:
        self.writes = 0
        self._cloud = cloud
        self._at = at
        self._is_done = is_done
        self._killing: asyncio.Task[None] | None = None
        [self._server] = cloud.servers
        self._line = cloud.stores[self._server]
        self._commit = self._line.commit
        self._line.commit = self.commit  # type: ignore[method-assign] # the fault is injected here

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        # Only the leader's controller expects the service to be as it was, and itself to lead.
        if not {RECORD, "leader"} <= {one.key for one in expect}:
            return await self._commit(ops, expect)
        self.writes += 1
        if self.writes != self._at:
            return await self._commit(ops, expect)
        if self._is_done:
            await self._commit(ops, expect)
        self._killing = asyncio.ensure_future(self._kill())
        await asyncio.Event().wait()  # whoever waits for this is killed
        raise AssertionError

    async def _kill(self) -> None:
        await self._cloud.kill(self._server)
        await passes(3.0)
        await self._cloud.add_server()

    async def down(self) -> None:
        """Wait until the other server is there."""
        if self._killing is not None:
            await self._killing


async def create(cloud: SimulatedCloud) -> None:
    wanted = ServiceSpec(spec(), replicas=3, update=QUICK)
    await cloud.request(lambda server: server.services.create(wanted, actor="test"))


async def update(cloud: SimulatedCloud, uri: str = "example.org/web:2") -> None:
    def changed(old: ServiceSpec) -> ServiceSpec:
        return replace(old, template=replace(old.template, uri=uri))

    await cloud.request(lambda server: server.services.change("web", changed, actor="test"))


async def update_badly(cloud: SimulatedCloud) -> None:
    await update(cloud, BAD)


async def scale(cloud: SimulatedCloud, replicas: int) -> None:
    await cloud.request(lambda server: server.services.scale("web", replicas, actor="test"))


async def scale_up(cloud: SimulatedCloud) -> None:
    await scale(cloud, 5)


async def scale_down(cloud: SimulatedCloud) -> None:
    await scale(cloud, 1)


async def delete(cloud: SimulatedCloud) -> None:
    await cloud.request(lambda server: server.services.delete("web", actor="test"))


async def ended(cloud: SimulatedCloud) -> None:
    """Wait for the end of what was begun: no update is under way, and there are as many copies as wanted."""
    async with asyncio.timeout(600.0):
        while (service := the_service(cloud)) is not None and (
            service.rollout is not None or service.is_deleting or ready(cloud) != service.replicas
        ):
            await passes(1.0)


def the_service(cloud: SimulatedCloud) -> Service | None:
    return next(iter(cloud.checker.services.services.values()), None)


def ready(cloud: SimulatedCloud) -> int:
    return sum(one.is_ready for one in cloud.checker.instances.values())


def images(cloud: SimulatedCloud) -> list[str]:
    there = cloud.checker.instances.values()
    return sorted(one.spec.uri for one in there if one.observed.status not in TERMINAL)


async def write_count(act: Callable[[SimulatedCloud], Awaitable[None]], *, is_first: bool) -> int:
    """How many writes the leader makes about it."""
    async with cloud_of(*[1000] * 3, become=RandomFaultPlanner(1, is_calm=True)) as cloud:
        if not is_first:
            await create(cloud)
            await ended(cloud)
            await settled(cloud)
        counted = Guillotine(cloud)
        await act(cloud)
        await ended(cloud)
        await settled(cloud)
        return counted.writes


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (create, ["example.org/web:1"] * 3),
        (update, ["example.org/web:2"] * 3),
        (update_badly, ["example.org/web:1"] * 3),
        (scale_up, ["example.org/web:1"] * 5),
        (scale_down, ["example.org/web:1"]),
        (delete, []),
    ],
)
def test_a_leader_that_is_killed_at_any_write_of_a_rollout_is_followed_by_one_that_ends_it(
    act: Callable[[SimulatedCloud], Awaitable[None]], expected: list[str], is_done: bool
) -> None:
    async def story(at: int) -> None:
        async with cloud_of(*[1000] * 3, become=RandomFaultPlanner(1, is_calm=True)) as cloud:
            if act is not create:
                await create(cloud)
                await ended(cloud)
            guillotine = Guillotine(cloud, at, is_done=is_done)
            await act(cloud)
            await ended(cloud)
            await guillotine.down()
            await ended(cloud)
            await settled(cloud)
            assert guillotine.writes == at, "it was killed on the way"
            assert images(cloud) == expected
            service = the_service(cloud)
            assert (service is None) is (act is delete)
            if act is update_badly:
                kept = await cloud.request(lambda server: server.services.revisions("web"))
                assert [one.outcome for one in kept] == [RevisionOutcome.GOOD, RevisionOutcome.FAILED]

    writes = simulated_time.run(write_count(act, is_first=act is create))
    assert writes >= 1
    for at in range(1, writes + 1):
        simulated_time.run(story(at))
