"""Simulated users: what users of services and those of jobs have in common.

An action is a coroutine that sends one request to any server. `skerry.sim.cluster.fault_injector` does the
actions among its faults.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from skerry.model import errors
from skerry.model.ids import InstanceId
from skerry.sim.cluster.cloud import SimulatedCloud
from skerry.sim.cluster.server import SimulatedServer

T = TypeVar("T")

Action = Callable[[], Coroutine[Any, Any, None]]


class SimulatedUsers:
    """Users of one kind of object; `later` does an action after about so many seconds."""

    def __init__(
        self, cloud: SimulatedCloud, chance: random.Random, later: Callable[[Action, float], None]
    ) -> None:
        self._cloud = cloud
        self._chance = chance
        self._later = later
        self._created = 0

    async def _request(self, send: Callable[[SimulatedServer], Coroutine[Any, Any, T]]) -> T:
        return await self._cloud.request(send)

    def _request_later(
        self, send: Callable[[SimulatedServer], Coroutine[Any, Any, object]], mean_s: float
    ) -> None:
        async def request() -> None:
            await self._request(send)

        self._later(request, mean_s)

    def _new_name(self, kind: str) -> str:
        self._created += 1
        return f"{kind}-{self._created}"

    def _choose(self, kind: str, objects: Collection[T]) -> T:
        if not objects:
            raise errors.NotFound(f"there is no {kind}")
        return self._chance.choice(list(objects))

    def _choose_instance(self, by_owner: Mapping[Any, Mapping[InstanceId, object]]) -> InstanceId:
        return self._choose("instance", [id for of_one in by_owner.values() for id in of_one])

    async def _repeat_for_each(
        self, objects: Mapping[Any, T], action: Callable[[T], Awaitable[None]], *, every_s: float
    ) -> None:
        """For ever: do `action` with each object, and ignore what fails."""
        while True:
            for one in list(objects.values()):
                with suppress(errors.SkerryError):
                    await action(one)
            await asyncio.sleep(every_s)
