"""The registry of services: it takes requests durably, each with its event, and a new revision, in one
transaction.

`skerry.control.services.requests` decides how a request changes a service; the leader creates and stops the
copies. Nothing here makes or stops an instance.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from typing import NamedTuple, Protocol

import structlog
from msgspec.structs import replace

from skerry.control.events.log import EventLog, StoredEvent
from skerry.control.idempotency import IdempotencyTable, IdempotentRequest
from skerry.control.instance_index import InstanceTable
from skerry.control.instances.silence import with_liveness
from skerry.control.named_table import key_of, key_of_name
from skerry.control.nodes.conditions import NodeConditions
from skerry.control.paging import ListPage
from skerry.control.services import previews, requests
from skerry.control.services.copies import NodeAvailability, ServiceCopies, owner_of
from skerry.control.services.previews import PlacementPreview, ServicePreview
from skerry.control.services.requests import ServiceChange, ServiceSpec
from skerry.control.services.tables import ServiceRecord, ServiceTables, revision_key
from skerry.control.workloads.mount_checks import MountChecks, UncheckedMounts
from skerry.control.workloads.registry import check_match, check_may_create, check_size, check_space
from skerry.kit import json_codec, logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors, secret_versions
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, NodeId, ServiceId
from skerry.model.namespace_scope import WHOLE_CLOUD, ListedNamespaces, NamespaceScope
from skerry.model.nodes import Liveness
from skerry.model.secret_versions import NO_SECRETS, SecretVersions
from skerry.model.services import Service, ServiceRevision
from skerry.model.workloads import Instance, OwnerKind, check_granted
from skerry.store.protocol import Op, Store
from skerry.store.tables.table import Write

log = structlog.get_logger(__name__)


class ServiceState(NamedTuple):
    """A service with its copies, by index and age; `ready` counts those that are in service."""

    service: Service
    copies: Sequence[Instance]
    ready: int
    good: int  # of the target, for long enough
    revision: int  # of the record in the store


class AddressAssigner(Protocol):
    """The part of `skerry.control.network.service_addresses.ServiceAddressAllocator` that is needed here."""

    async def assign(self, service: Service) -> Service: ...


class ServiceRegistry:
    """The services of one cloud."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        *,
        tables: ServiceTables,
        instance_table: InstanceTable,
        conditions: NodeConditions,
        placement: PlacementPreview,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        """`new_id` names a service that is made at this time."""
        self._secrets: SecretVersions = NO_SECRETS
        self._mounts: MountChecks = UncheckedMounts()
        self._addresses: AddressAssigner | None = None
        self._new_id = new_id
        self.tables = tables
        self._store = store
        self._events = events
        self._clock = clock
        self._instances = instance_table.index
        self._conditions = conditions
        self._placement = placement
        self._idempotency = IdempotencyTable(store, clock)

    def use_secrets(self, secrets: SecretVersions) -> None:
        """Templates may use these from now on."""
        self._secrets = secrets

    def follow_volumes(self, mounts: MountChecks) -> None:
        """Refuse specs that name volumes which do not exist."""
        self._mounts = mounts

    def assign_addresses(self, addresses: AddressAssigner) -> None:
        """Give new services virtual addresses."""
        self._addresses = addresses

    async def create(
        self,
        spec: ServiceSpec,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        idempotency_key: str | None = None,
    ) -> tuple[Service, bool]:
        """A service of this spec, named as its template is, and whether it is new.

        The same spec again, or the same key with the same request, returns the existing one; another spec
        raises `AlreadyExists`.
        """
        check_space()
        check_may_create(namespace, actor)
        check_size(spec.template)
        check_granted(spec.template)
        await self._check_mounts(spec, namespace)
        given, spec = spec, await self._settle(spec, namespace)
        now = self._clock.now()
        service = requests.create(
            ServiceId(self._new_id(now)),
            spec,
            namespace=namespace,
            now=now,
            actor=actor,
            request_id=logs.request_id(),
        )

        def check_existing(existing: Service) -> None:
            _check_not_deleting(existing)
            if not requests.is_same(existing, spec):
                raise errors.AlreadyExists(
                    f"service {existing.name} exists with another spec; change it instead (`skerry service "
                    "update`)"
                )

        created, is_new = await self.tables.services.create(
            service,
            [*self._ops(ServiceChange(service, "created"), actor), self._put_revision(service)],
            IdempotentRequest.of(idempotency_key, actor, namespace, "service", given),
            self._idempotency,
            check_existing=check_existing,
        )
        return (await self._with_address(created) if is_new else created), is_new

    async def _with_address(self, service: Service) -> Service:
        if self._addresses is None:
            return service
        try:
            return await self._addresses.assign(service)
        except (errors.ResourcesExhausted, errors.Unavailable) as error:  # the leader tries again
            log.warning("services.address_not_assigned", service=service.id, error=error.message)
            return service

    async def change(
        self,
        name: str,
        merge: Callable[[ServiceSpec], ServiceSpec],
        *,
        actor: str,
        namespace: Namespace | None = None,
        if_match: int | None = None,
    ) -> Service:
        """Have the spec that `merge` makes of the present one; nothing is written if that is equal."""
        check_space()
        found = (await self.find(name, namespace)).value
        await self._check_mounts(merge(ServiceSpec.of(found)), found.namespace)
        return await self._update(
            name, namespace, lambda one: self._change(one, merge, actor), actor=actor, if_match=if_match
        )

    async def follow_secrets(self, service: Service, *, actor: str) -> Service:
        """Begin an update to newer versions of its secrets and configs, if there are any."""

        def decide(one: Service) -> ServiceChange | None:
            revisions = self.tables.revisions_of(one.id)
            return requests.follow_secrets(one, revisions, self._secrets, now=self._clock.now(), actor=actor)

        return await self._update(service.id, service.namespace, decide, actor=actor)

    async def scale(
        self, name: str, replicas: int, *, actor: str, namespace: Namespace | None = None
    ) -> Service:
        """Have so many copies; refused while autoscaling decides that."""
        check_space()
        found = (await self.find(name, namespace)).value
        await self._mounts.check_templates(found.name, found.target.template, replicas, found.namespace)
        return await self._update(
            name, namespace, lambda service: requests.scale(service, replicas), actor=actor
        )

    async def wake(self, id: ServiceId) -> None:
        """Start a copy of a service that was scaled to zero."""
        check_space()
        if (record := self.tables.services.by_id(id)) is None:
            await self.tables.services.sync()
            if (record := self.tables.services.by_id(id)) is None:
                return  # it was deleted
        if requests.wake(record.value) is not None:
            await self._update(id, record.value.namespace, requests.wake, actor="skerry")

    async def roll_back(
        self, name: str, number: int | None = None, *, actor: str, namespace: Namespace | None = None
    ) -> Service:
        """Go back to revision `number`, or to the last good one before the present."""
        kept = await self.revisions(name, namespace)

        def decide(service: Service) -> ServiceChange | None:
            return requests.roll_back(service, kept, number, now=self._clock.now())

        return await self._update(name, namespace, decide, actor=actor)

    async def promote(self, name: str, *, actor: str, namespace: Namespace | None = None) -> Service:
        """Have all copies follow the canaries."""
        return await self._update(
            name, namespace, lambda service: requests.promote(service, now=self._clock.now()), actor=actor
        )

    async def pause(self, name: str, *, actor: str, namespace: Namespace | None = None) -> Service:
        """Leave copies as they are; what fails is still replaced."""
        return await self._update(name, namespace, requests.pause, actor=actor)

    async def resume(self, name: str, *, actor: str, namespace: Namespace | None = None) -> Service:
        return await self._update(
            name, namespace, lambda service: requests.resume(service, now=self._clock.now()), actor=actor
        )

    async def delete(self, name: str, *, actor: str, namespace: Namespace | None = None) -> Service:
        """Delete it with its copies: it is removed, and its name free, when they are."""
        record = await self.find(name, namespace)
        if record.value.is_deleting:
            return record.value
        return await self._update(name, namespace, requests.delete, actor=actor)

    async def plan(
        self,
        name: str,
        make: Callable[[ServiceSpec | None], ServiceSpec],
        *,
        actor: str,
        namespace: Namespace | None = None,
    ) -> ServicePreview:
        """The effects of changing the spec of a service by `make`; its argument is None if there is no
        service yet. Raises as `create` and `change` do, and writes nothing."""
        now = self._clock.now()
        namespace = namespace or DEFAULT_NAMESPACE
        record = await self._read(name, namespace)
        if record is None:
            check_may_create(namespace, actor)
            spec = make(None)
            check_size(spec.template)
            check_granted(spec.template)
            spec = await self._settle(spec, namespace)
            id = ServiceId(self._new_id(now))
            after = requests.create(id, spec, namespace=namespace, now=now, actor=actor)
            return previews.preview(None, after, (), self._placement, now)
        before = record.value
        _check_not_deleting(before)
        change = self._change(before, make, actor)
        after = before if change is None else change.service
        return previews.preview(before, after, self.state(record).copies, self._placement, now)

    # Reading

    async def find(self, name: str, namespace: Namespace | None = None) -> ServiceRecord:
        """The service of that name or id; without a namespace, a name is of the default one."""
        record = self.tables.services.by_id(name)
        if record is None or namespace not in (None, record.value.namespace):
            record = await self._read(name, namespace or DEFAULT_NAMESPACE)
        if record is None:
            raise self.tables.services.unknown(name, namespace)
        return record

    async def get(self, name: str, namespace: Namespace | None = None) -> ServiceState:
        return self.state(await self.find(name, namespace))

    def state(self, record: ServiceRecord) -> ServiceState:
        """A service with its copies as they are known now."""
        service = record.value
        copies = sorted(
            (known.value for known in self._instances.of_owner(OwnerKind.SERVICE, service.id)),
            key=lambda copy: (owner_of(copy).index, copy.created_at, copy.id),
        )
        nodes = {copy.node for copy in copies if copy.node is not None}
        unreachable = frozenset(node for node in nodes if not self._is_reachable(node))
        sorted_out = ServiceCopies(service, copies, NodeAvailability(unreachable), self._clock.now())
        shown = [
            copy if copy.node is None else with_liveness(copy, self._conditions.condition(copy.node))
            for copy in copies
        ]
        return ServiceState(service, shown, sorted_out.ready, sorted_out.good_of_target(), record.revision)

    def list(
        self,
        *,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
        namespace: ListedNamespaces = None,
    ) -> ListPage[ServiceState]:
        """Services by age, of all namespaces if none is given."""
        page = self.tables.services.list_page(namespace, limit=limit, offset=offset, cursor=cursor)
        return page.map(self.state)

    async def revisions(self, name: str, namespace: Namespace | None = None) -> Sequence[ServiceRevision]:
        """The revisions that are kept, the oldest first."""
        service = (await self.find(name, namespace)).value
        page = await self._store.range(f"{self.tables.revisions.prefix}{service.id}/")
        return [json_codec.decode(entry.value, ServiceRevision) for entry in page.entries]

    async def events(
        self, name: str, namespace: Namespace | None = None, *, reader: NamespaceScope = WHOLE_CLOUD
    ) -> Sequence[StoredEvent]:
        """Events of the service that are kept; of the copies each has its own."""
        service = (await self.find(name, namespace)).value
        events = await self._events.of(self._subject(service), reader=reader)
        # One of that name may have been deleted before.
        return [one for one in events if one.event.at >= service.created_at]

    async def _read(self, name: str, namespace: Namespace) -> ServiceRecord | None:
        if "/" in name:
            return None  # it would be a key of another namespace
        key = key_of_name(name, namespace)
        # If it is not known here, perhaps another server has just made it.
        return self.tables.services.get(key) or await self.tables.services.read(key)

    async def _check_mounts(self, spec: ServiceSpec, namespace: Namespace) -> None:
        """Raise if a volume of its copies does not exist, or is not its own."""
        await self._mounts.check_mounts(spec.template, namespace)
        await self._mounts.check_templates(spec.template.name, spec.template, spec.replicas, namespace)

    def _change(
        self, service: Service, merge: Callable[[ServiceSpec], ServiceSpec], actor: str
    ) -> ServiceChange | None:
        spec = merge(ServiceSpec.of(service))
        check_size(spec.template)
        before = service.target.template
        check_granted(spec.template, before)
        template = secret_versions.settle(spec.template, service.namespace, self._secrets, before)
        spec = replace(spec, template=template)
        return requests.change(service, spec, now=self._clock.now(), actor=actor)

    async def _settle(self, spec: ServiceSpec, namespace: Namespace) -> ServiceSpec:
        await self._secrets.catch_up(namespace, spec.template.secrets)
        return replace(spec, template=secret_versions.settle(spec.template, namespace, self._secrets))

    async def _update(
        self,
        name: str,
        namespace: Namespace | None,
        decide: Callable[[Service], ServiceChange | None],
        *,
        actor: str,
        if_match: int | None = None,
    ) -> Service:
        """Write what `decide` makes of a service, however often it changes meanwhile."""
        found = (await self.find(name, namespace)).value

        def write(record: ServiceRecord) -> Write[Service] | None:
            if record.value.id != found.id:
                raise self.tables.services.unknown(name, namespace)  # it went, and another has its name
            check_match(record.revision, if_match)
            _check_not_deleting(record.value)
            change = decide(record.value)
            if change is None:
                return None
            change = change._replace(service=replace(change.service, request_id=logs.request_id()))
            return Write(change.service, self._ops(change, actor))

        services = self.tables.services
        return await services.update(key_of(found), write, missing=services.unknown(name, namespace))

    def _ops(self, change: ServiceChange, actor: str) -> Sequence[Op]:
        """The event, a new revision, and without those that are too old."""
        service = change.service
        ops: MutableSequence[Op] = [
            self._events.put(
                f"service.{change.kind}",
                self._subject(service),
                actor=actor,
                reason=change.reason,
                request_id=service.request_id,
                revision=str(service.target.number),
                replicas=str(service.replicas),
            )
        ]
        if change.revision is not None:
            ops.append(self._put_revision(service))
            kept = self.tables.revisions_of(service.id)
            ops += [
                self.tables.revisions.delete(revision_key(service.id, number))
                for number in requests.superfluous(service, kept)
            ]
        return ops

    def _put_revision(self, service: Service) -> Op:
        return self.tables.revisions.put(revision_key(service.id, service.target.number), service.target)

    def _subject(self, service: Service) -> str:
        return self.tables.services.subject(service)

    def _is_reachable(self, node: NodeId) -> bool:
        condition = self._conditions.condition(node)
        return condition is not None and condition.liveness is Liveness.LIVE


def _check_not_deleting(service: Service) -> None:
    if service.is_deleting:
        raise errors.Conflict(
            f"service {service.name} is being deleted; its name is free when its copies are removed: try "
            "again then"
        )
