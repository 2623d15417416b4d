"""Users of services in a simulated cloud: they create, scale, update, roll back, pause and delete, by chance.

Some updates are to images that never work (`skerry.sim.cluster.fault_plan`): those must be reverted, or wait
for a user to decide. `skerry.sim.cluster.fault_injector` does these actions among its faults; what was
acknowledged is told to the witness.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from skerry.control.services.requests import ServiceSpec
from skerry.model import errors, ports
from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.model.services import (
    CountOrPercent,
    DisruptionBudget,
    Service,
    UpdateFailureAction,
    UpdateOrder,
    UpdatePolicy,
)
from skerry.model.statuses import DesiredStatus
from skerry.model.workloads import InstanceSpec
from skerry.sim import workload_generator
from skerry.sim.cluster.cloud import SimulatedCloud
from skerry.sim.cluster.fault_plan import BAD_IMAGES
from skerry.sim.cluster.server import SimulatedServer

FaultAction = Callable[[], Coroutine[Any, Any, None]]

_MOST_REPLICAS = 5
_DECIDES_S = 15.0  # between two looks at what waits for a user
_CHECK = HealthCheck(CheckRole.READINESS, CheckMethod.TCP, 80)
_UNREADY = "example.org/bad:unready"  # which only a check finds


class ServiceUsers:
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
            self.create_a_service: 1,
            self.scale_a_service: 4,
            self.update_a_service: 8,
            self.roll_back_a_service: 2,
            self.pause_a_service: 2,
            self.delete_a_service: 1,
            self.stop_a_copy: 2,
        }

    async def create_a_service(self) -> None:
        self._made += 1
        name = f"service-{self._made}"
        replicas = self._chance.randint(1, _MOST_REPLICAS)
        spec = ServiceSpec(
            self._template(name),
            replicas,
            self._policy(),
            DisruptionBudget(self._chance.choice([0, 1])),
        )
        requests = self._cloud.witness.services.replicas
        requests[name] = None
        await self._cloud.ask(lambda server: server.services.create(spec, actor="sim"))
        requests[name] = replicas

    async def scale_a_service(self) -> None:
        name, replicas = self._a_service().name, self._chance.randint(1, _MOST_REPLICAS)
        requests = self._cloud.witness.services.replicas
        requests[name] = None
        await self._cloud.ask(lambda server: server.services.scale(name, replicas, actor="sim"))
        requests[name] = replicas

    async def update_a_service(self) -> None:
        """To an image that works, most of the time."""
        name = self._a_service().name
        await self._update(name, self._template(name, bad=0.3))

    async def roll_back_a_service(self) -> None:
        service = self._a_service()
        number = self._chance.choice([None, self._chance.randint(1, service.latest)])
        await self._cloud.ask(lambda server: server.services.roll_back(service.name, number, actor="sim"))

    async def pause_a_service(self) -> None:
        name = self._a_service().name
        await self._cloud.ask(lambda server: server.services.pause(name, actor="sim"))

        async def resumed() -> None:
            await self._cloud.ask(lambda server: server.services.resume(name, actor="sim"))

        self._later(resumed, 30.0)

    async def delete_a_service(self) -> None:
        name = self._a_service().name
        requests = self._cloud.witness.services.replicas
        requests[name] = None
        await self._cloud.ask(lambda server: server.services.delete(name, actor="sim"))
        del requests[name]

    async def stop_a_copy(self) -> None:
        """Somebody stops or destroys a copy, which its service then replaces."""
        copies = self._cloud.witness.services.copies
        ids = [id for of_one in copies.values() for id in of_one]
        if not ids:
            return
        id = self._chance.choice(ids)
        desired = self._chance.choice([DesiredStatus.STOPPED, DesiredStatus.DESTROYED])

        async def stop(server: SimulatedServer) -> None:
            verb = server.instances.stop if desired is DesiredStatus.STOPPED else server.instances.destroy
            await verb(id, actor="sim")

        await self._cloud.ask(stop)

    async def decide_what_waits(self) -> None:
        """For ever: resume what is paused, and go on from updates that failed and were not reverted."""
        while True:
            for service in list(self._cloud.witness.services.services.values()):
                with suppress(errors.SkerryError):
                    await self._decide(service)
            await asyncio.sleep(_DECIDES_S)

    async def _decide(self, service: Service) -> None:
        name, rollout = service.name, service.rollout
        if service.is_deleting:
            return
        if rollout is not None and rollout.is_halted:
            try:
                await self._cloud.ask(lambda server: server.services.roll_back(name, actor="sim"))
            except errors.FailedPrecondition:  # none was ever good
                await self._update(name, self._template(name))
        elif service.is_paused:
            await self._cloud.ask(lambda server: server.services.resume(name, actor="sim"))

    async def _update(self, name: str, template: InstanceSpec) -> None:
        def changed(spec: ServiceSpec) -> ServiceSpec:
            return replace(spec, template=template)

        await self._cloud.ask(lambda server: server.services.change(name, changed, actor="sim"))

    def _a_service(self) -> Service:
        services = list(self._cloud.witness.services.services.values())
        if not services:
            raise errors.NotFound("there is no service")
        return self._chance.choice(services)

    def _template(self, name: str, bad: float = 0.0) -> InstanceSpec:
        chance = self._chance
        [drawn] = workload_generator.draw_specs(1, chance)
        uri = f"example.org/good:{chance.getrandbits(32)}"
        if chance.random() < bad:
            uri = chance.choice(list(BAD_IMAGES))
        is_checked = uri == _UNREADY or chance.random() < 0.5
        return replace(
            drawn,
            name=name,
            uri=uri,
            checks=(_CHECK,) if is_checked else (),
            ports=(ports.parse(f"{8000 + self._made}:80"),) if chance.random() < 0.2 else (),
            max_per_node=chance.choice([0, 0, 0, 1]),
        )

    def _policy(self) -> UpdatePolicy:
        chance = self._chance
        order = chance.choice([UpdateOrder.AUTO, UpdateOrder.AUTO, UpdateOrder.STOP_FIRST])
        surges: list[CountOrPercent] = [1, 2, "50%"]
        unavailable: list[CountOrPercent] = [1, 2] if order is UpdateOrder.STOP_FIRST else [0, 0, 1, "50%"]
        reverts, pauses = UpdateFailureAction.REVERT, UpdateFailureAction.PAUSE
        return UpdatePolicy(
            order=order,
            max_surge=chance.choice(surges),
            max_unavailable=chance.choice(unavailable),
            min_ready_s=2.0,
            drain_s=chance.choice([0.0, 3.0]),
            deadline_s=chance.choice([60.0, 120.0]),
            canary=chance.choice([0, 0, 1]),
            promote_after_s=10.0,
            on_failure=chance.choice([reverts, reverts, pauses]),
        )
