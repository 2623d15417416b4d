"""The invariants of services, checked on every transaction, and what holds of them after convergence.

The properties, by name:

- never too many: a copy is created only while no more than `replicas + max_surge` exist, it included;
- never too few: a ready copy is taken out of service only while `replicas - max_unavailable` others are
  ready, as far as the server that decided it could know. Crashed copies and lost nodes do not count;
- never a lost request: what was acknowledged holds until the next request.

After convergence every service has its replicas, ready and of one good revision, and every copy has its
service. Called by `skerry.sim.cluster.invariants`, which follows the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from skerry.control.instance_index import PREFIX as INSTANCES
from skerry.kit import json_codec
from skerry.model.ids import InstanceId, NodeId, ServiceId
from skerry.model.services import Service
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, OwnerKind
from skerry.sim.cluster.fault_plan import BAD_IMAGES
from skerry.store.protocol import Batch, Delete, Op

SERVICES = "service/"
# Marks the record of a copy of a service, so that others need not be decoded.
_MARK = b'"kind":"service"'


class ServiceInvariants:
    """The services and their copies after each transaction; `is_live` is whether a node is live."""

    def __init__(self, violated: Callable[[str], None], is_live: Callable[[NodeId], bool]) -> None:
        self.services: dict[ServiceId, Service] = {}
        self.copies: dict[ServiceId, dict[InstanceId, Instance]] = {}
        self.replicas: dict[str, int | None] = {}  # as acknowledged, by name; None: not known
        self._violated = violated
        self._is_live = is_live
        self._keys: dict[str, ServiceId] = {}
        self._owners: dict[InstanceId, ServiceId] = {}
        # Copies that are not ready any more by what happened to them, and since which revision.
        self._lost: dict[ServiceId, dict[InstanceId, int]] = {}
        self._known: dict[tuple[str, bytes], int] = {}  # the revision that the writer of a record knew

    def sent(self, ops: Sequence[Op], known: int) -> None:
        """A server that knows instances up to the revision `known` sends a transaction."""
        for op in ops:
            if not isinstance(op, Delete) and op.key.startswith(INSTANCES) and _MARK in op.value:
                self._known[op.key, op.value] = known

    def observe(self, batch: Batch) -> None:
        """Check one transaction."""
        created: set[ServiceId] = set()
        withdrawn: dict[ServiceId, int] = {}  # the revision that the writer of a withdrawal knew
        for change in batch.changes:
            if change.key.startswith(SERVICES):
                service = None if change.entry is None else json_codec.decode(change.entry.value, Service)
                self._service_changed(change.key, service)
            elif change.key.startswith(INSTANCES):
                id = InstanceId(change.key.removeprefix(INSTANCES))
                value = b"" if change.entry is None else change.entry.value
                known = self._known.pop((change.key, value), batch.revision)
                after = json_codec.decode(value, Instance) if _MARK in value else None
                self._copy_changed(id, after, batch.revision, known, created, withdrawn)
        for owner in sorted(created):
            self._check_surge(owner)
        for owner, known in withdrawn.items():
            self._check_ready(owner, known)

    def unfulfilled(self, explain: Callable[[Instance], bool]) -> Iterator[str]:
        """What does not hold after convergence; `explain` is whether a waiting copy could be placed."""
        named = {service.name: service for service in self.services.values()}
        for name, replicas in self.replicas.items():
            service = named.get(name)
            if replicas is not None and (service is None or service.replicas != replicas):
                found = "not there" if service is None else f"{service.replicas}"
                yield f"service {name} is to have {replicas} replicas, and is {found}"
        for owner, copies in self.copies.items():
            if owner not in self.services and copies:
                yield f"{min(copies)} is a copy of service {owner}, which is gone"
        for service in self.services.values():
            yield from self._differences(service, list(self.copies.get(service.id, {}).values()), explain)

    def _differences(
        self, service: Service, copies: Sequence[Instance], explain: Callable[[Instance], bool]
    ) -> Iterator[str]:
        name = service.name
        if service.is_deleting:
            yield f"service {name} is still being deleted"
            return
        there = [copy for copy in copies if copy.observed.status not in TERMINAL]
        # A copy that no node has resources for waits, and so does its update.
        waiting = [copy for copy in there if copy.observed.status is InstanceStatus.SCHEDULING]
        is_short = bool(waiting) and not any(explain(copy) for copy in waiting)
        if service.rollout is not None and not (is_short and service.rollout.is_revert):
            yield f"service {name} is still being updated to revision {service.target.number}"
        if any(copy.spec.uri in BAD_IMAGES for copy in there):
            yield f"service {name} still has a copy of a bad revision"
        if service.rollout is None and any(
            copy.owner is not None and copy.owner.revision != service.target.number for copy in there
        ):
            yield f"service {name} has a copy of another revision than {service.target.number}"
        ready = sum(copy.is_ready for copy in there)
        if ready + len(waiting) * is_short < service.replicas:
            yield f"service {name} has {ready} ready copies of {service.replicas}"
        if len(there) > service.replicas and not is_short:
            yield f"service {name} has {len(there)} copies, and should have {service.replicas}"

    def _service_changed(self, key: str, service: Service | None) -> None:
        before = self._keys.pop(key, None)
        if before is not None:
            self.services.pop(before, None)
        if service is not None:
            self._keys[key] = service.id
            self.services[service.id] = service

    def _copy_changed(
        self,
        id: InstanceId,
        after: Instance | None,
        revision: int,
        known: int,
        created: set[ServiceId],
        withdrawn: dict[ServiceId, int],
    ) -> None:
        owner = _owner(after) or self._owners.pop(id, None)
        if owner is None:
            return  # it has no owner
        copies = self.copies.setdefault(owner, {})
        lost = self._lost.setdefault(owner, {})
        before = copies.pop(id, None)
        if after is None:
            lost.pop(id, None)
            if not copies:
                del self.copies[owner], self._lost[owner]
            return
        copies[id], self._owners[id] = after, owner
        if before is None:
            created.add(owner)
        elif before.is_ready and not after.is_ready:
            if _is_withdrawn(before, after):
                if before.node is not None and self._is_live(before.node):
                    withdrawn[owner] = known
            else:
                lost[id] = revision

    def _check_surge(self, owner: ServiceId) -> None:
        service = self.services.get(owner)
        if service is None:
            self._violated(f"a copy was created of service {owner}, which is not there")
            return
        existing = sum(copy.observed.status not in TERMINAL for copy in self.copies[owner].values())
        most = service.replicas + service.bounds.surge
        if existing > most:
            self._violated(f"service {service.name} has {existing} copies, and {most} at most")

    def _check_ready(self, owner: ServiceId, known: int) -> None:
        service = self.services.get(owner)
        if service is None or service.is_deleting:
            return
        unavailable = max(service.bounds.unavailable, service.budget.resolve(service.replicas))
        floor = service.replicas - unavailable
        copies, lost = self.copies.get(owner, {}), self._lost.get(owner, {})
        ready = sum(copy.is_ready or lost.get(id, 0) > known for id, copy in copies.items())
        if ready < floor:
            self._violated(
                f"service {service.name} was left with {ready} ready copies of {service.replicas}, where "
                f"{floor} are the least"
            )


def _owner(copy: Instance | None) -> ServiceId | None:
    if copy is None or copy.owner is None or copy.owner.kind is not OwnerKind.SERVICE:
        return None
    return ServiceId(copy.owner.id)


def _is_withdrawn(before: Instance, after: Instance) -> bool:
    """True if the control plane itself took it out of service."""
    if after.retiring_at is not None and before.retiring_at is None:
        return True
    return (
        after.desired is DesiredStatus.DESTROYED
        and before.desired is not DesiredStatus.DESTROYED
        and after.observed.actor == "skerry"
    )
