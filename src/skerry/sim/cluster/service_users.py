"""Users of services in a simulated cloud: they create, scale, update, roll back, pause and delete, by chance.

Some updates are to images that never work (`skerry.sim.cluster.fault_plan`): those must be reverted, or wait
for a user to decide. The invariant checker records which requests were acknowledged.
"""

from __future__ import annotations

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
from skerry.model.workloads import InstanceSpec
from skerry.sim import workload_generator
from skerry.sim.cluster.fault_plan import BAD_IMAGES
from skerry.sim.cluster.users import Action, SimulatedUsers

_MAX_REPLICAS = 5
_DECIDE_EVERY_S = 15.0
_CHECK = HealthCheck(CheckRole.READINESS, CheckMethod.TCP, 80)
_UNREADY = "example.org/bad:unready"  # which only a check finds


class ServiceUsers(SimulatedUsers):
    """Users of services."""

    def actions(self) -> dict[Action, int]:
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
        name = self._new_name("service")
        replicas = self._chance.randint(1, _MAX_REPLICAS)
        spec = ServiceSpec(
            self._template(name),
            replicas,
            self._policy(),
            DisruptionBudget(self._chance.choice([0, 1])),
        )
        requests = self._cloud.checker.services.replicas
        requests[name] = None
        await self._request(lambda server: server.services.create(spec, actor="sim"))
        requests[name] = replicas

    async def scale_a_service(self) -> None:
        name, replicas = self._a_service().name, self._chance.randint(1, _MAX_REPLICAS)
        requests = self._cloud.checker.services.replicas
        requests[name] = None
        await self._request(lambda server: server.services.scale(name, replicas, actor="sim"))
        requests[name] = replicas

    async def update_a_service(self) -> None:
        """To an image that works, most of the time."""
        name = self._a_service().name
        await self._update(name, self._template(name, bad=0.3))

    async def roll_back_a_service(self) -> None:
        service = self._a_service()
        number = self._chance.choice([None, self._chance.randint(1, service.latest)])
        await self._request(lambda server: server.services.roll_back(service.name, number, actor="sim"))

    async def pause_a_service(self) -> None:
        name = self._a_service().name
        await self._request(lambda server: server.services.pause(name, actor="sim"))
        self._request_later(lambda server: server.services.resume(name, actor="sim"), 30.0)

    async def delete_a_service(self) -> None:
        name = self._a_service().name
        requests = self._cloud.checker.services.replicas
        requests[name] = None
        await self._request(lambda server: server.services.delete(name, actor="sim"))
        del requests[name]

    async def stop_a_copy(self) -> None:
        """Somebody stops or destroys a copy, which its service then replaces."""
        id = self._choose_instance(self._cloud.checker.services.copies)
        verb = self._chance.choice(["stop", "destroy"])
        await self._request(lambda server: getattr(server.instances, verb)(id, actor="sim"))

    async def resolve_all(self) -> None:
        """For ever: resume what is paused, and go on from updates that failed and were not reverted."""
        services = self._cloud.checker.services.services
        await self._repeat_for_each(services, self._resolve, every_s=_DECIDE_EVERY_S)

    async def _resolve(self, service: Service) -> None:
        name, rollout = service.name, service.rollout
        if service.is_deleting:
            return
        if rollout is not None and rollout.is_halted:
            try:
                await self._request(lambda server: server.services.roll_back(name, actor="sim"))
            except errors.FailedPrecondition:  # none was ever good
                await self._update(name, self._template(name))
        elif service.is_paused:
            await self._request(lambda server: server.services.resume(name, actor="sim"))

    async def _update(self, name: str, template: InstanceSpec) -> None:
        def changed(spec: ServiceSpec) -> ServiceSpec:
            return replace(spec, template=template)

        await self._request(lambda server: server.services.change(name, changed, actor="sim"))

    def _a_service(self) -> Service:
        return self._choose("service", self._cloud.checker.services.services.values())

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
            ports=(ports.parse(f"{8000 + self._created}:80"),) if chance.random() < 0.2 else (),
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
