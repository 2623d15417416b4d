"""The registry of volumes: it takes requests durably, and answers reads from memory.

A request is acknowledged when the store has it. A volume is bound by placement, with the first instance that
uses it, and its node creates it then. Deleting is refused while anything uses it, and done when the node has
removed the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.idempotency import IdempotencyTable, IdempotentRequest
from skerry.control.named_table import key_of
from skerry.control.nodes.conditions import NodeConditions
from skerry.control.paging import ListPage
from skerry.control.volumes.reports import VolumeReports
from skerry.control.volumes.table import VolumeRecord, VolumeTable
from skerry.control.volumes.templates import is_of_template
from skerry.control.volumes.users import VolumeUsers
from skerry.control.workloads.registry import check_may_create, check_space
from skerry.kit import logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, NodeId, VolumeId
from skerry.model.mounts import MountKind
from skerry.model.namespace_scope import ListedNamespaces
from skerry.model.resources import Gigabytes
from skerry.model.volumes import UNUSED, Volume, VolumeStatus, VolumeUsage, volume_name
from skerry.model.workloads import Constraint, InstanceSpec
from skerry.store.protocol import Store
from skerry.store.tables.table import Write

MAX_VOLUMES = 100_000
_MAX_NAMED = 5  # users in a message


class VolumeSpec(msgspec.Struct, frozen=True):
    """All of a volume that people decide."""

    size: Gigabytes
    pin: str = ""  # the node that it is to be on, by name or id
    constraints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        ids.check_display_text(self.pin, "node")
        for text in self.constraints:
            Constraint.parse(text)

    @classmethod
    def of(cls, volume: Volume) -> VolumeSpec:
        return cls(volume.size, volume.pin, volume.constraints)


class VolumeRegistry:
    """The volumes of one cloud."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        *,
        table: VolumeTable,
        users: VolumeUsers,
        conditions: NodeConditions,
        reports: VolumeReports,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        self.table = table
        self._events = events
        self._clock = clock
        self._users = users
        self._conditions = conditions
        self._reports = reports
        self._new_id = new_id
        self._idempotency = IdempotencyTable(store, clock)

    async def create(
        self,
        name: str,
        spec: VolumeSpec,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        idempotency_key: str | None = None,
    ) -> tuple[Volume, bool]:
        """A volume of this name, and whether it is new.

        The same name with the same spec, or the same key with the same request, returns the existing one; the
        same name with another spec raises `AlreadyExists`.
        """
        check_may_create(namespace, actor)
        check_space()
        now = self._clock.now()
        volume = Volume(
            VolumeId(self._new_id(now)),
            name,
            spec.size,
            now,
            namespace=namespace,
            since=now,
            reason=UNUSED,
            pin=spec.pin,
            constraints=spec.constraints,
            request_id=logs.request_id(),
        )
        return await self.table.create(
            volume,
            [self.table.event(self._events, "created", volume, actor=actor)],
            IdempotentRequest.of(idempotency_key, actor, namespace, "volume", name, spec),
            self._idempotency,
            check_existing=lambda existing: _check_same(existing, spec),
            limit=MAX_VOLUMES,
        )

    def get(self, name: str, namespace: Namespace | None = None) -> Volume:
        return self.find(name, namespace).value

    def find(self, name_or_id: str, namespace: Namespace | None = None) -> VolumeRecord:
        """The volume of that name, or else of that id, in a namespace; without one, a name in the default."""
        record = self.table.by_name(name_or_id, namespace) or self.table.by_id(name_or_id)
        if record is None or namespace not in (None, record.value.namespace):
            raise self.table.unknown(name_or_id, namespace)
        return record

    async def read(self, name_or_id: str, namespace: Namespace | None = None) -> VolumeRecord:
        """`find`, also of one that another server has just made."""
        try:
            return self.find(name_or_id, namespace)
        except errors.NotFound:
            await self.table.sync()
            return self.find(name_or_id, namespace)

    def list(
        self,
        *,
        namespace: ListedNamespaces = None,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
    ) -> ListPage[Volume]:
        """Volumes by age and id, of all namespaces if none is given."""
        page = self.table.list_page(namespace, limit=limit, offset=offset, cursor=cursor)
        return page.map(lambda record: record.value)

    def users(self, volume: Volume) -> Sequence[str]:
        """What uses it, in words."""
        return self._users.of(volume)

    def usage(self, volume: Volume) -> VolumeUsage | None:
        """How full it was when its node last reported to this server; None: it did not."""
        return self._reports.usage(volume.id)

    def node_name(self, node: NodeId) -> str:
        """The name of a node; its id if it is not registered or has none."""
        condition = self._conditions.condition(node)
        return node if condition is None or not condition.view.name else condition.view.name

    async def delete(self, name: str, *, actor: str, namespace: Namespace | None = None) -> Volume:
        """Delete it with its data; it is DELETING until its node has removed them. Refused while anything
        uses it. If it is on no node, or on one that is not registered any more, its record goes at once."""
        found = (await self.read(name, namespace)).value
        key = key_of(found)
        while True:
            record = await self.table.read(key)
            if record is None or record.value.id != found.id:
                raise self.table.unknown(name, namespace)
            # Every binding of an instance writes the record of the volume, too. So an instance that is bound
            # by now is known after this, and one that is bound later makes the write below fail.
            await self._users.sync()
            write = self._deletion(record.value, actor)
            if write is None:
                return record.value
            try:
                await self.table.commit(self.table.ops(key, write), [self.table.expect(key, record)])
            except errors.Conflict:
                continue
            return write.value

    def _deletion(self, volume: Volume, actor: str) -> Write[Volume] | None:
        """What deletes it; None if that is under way. Raises FailedPrecondition."""
        if volume.operation:
            raise errors.FailedPrecondition(
                f"volume {volume.name} has an operation under way; wait for it, or cancel it: "
                f"skerry volume cancel {volume.operation}"
            )
        if used_by := self._users.of(volume):
            raise _in_use(volume, used_by)
        is_reachable = volume.node is not None and self._conditions.condition(volume.node) is not None
        if volume.is_deleting and is_reachable:
            return None
        after = replace(
            volume,
            status=VolumeStatus.DELETING,
            reason="its node removes the data" if is_reachable else "",
            since=self._clock.now(),
            generation=volume.generation + 1,
            request_id=logs.request_id(),
        )
        event = self.table.event(self._events, "deleted", after, actor=actor)
        return Write(after, [event], is_delete=not is_reachable)

    async def check_mounts(self, spec: InstanceSpec, namespace: Namespace) -> None:
        """Raise unless every volume that instances of this spec use exists."""
        for name in spec.volume_names:
            try:
                volume = (await self.read(name, namespace)).value
            except errors.NotFound:
                option = "" if namespace == DEFAULT_NAMESPACE else f" -n {namespace}"
                raise errors.FailedPrecondition(
                    f"there is no volume {name!r} in the namespace {namespace!r}; create it first: "
                    f"skerry volume create {name} --size 1{option}"
                ) from None
            if volume.is_deleting:
                raise errors.FailedPrecondition(
                    f"volume {name} is being deleted; use another, or create it again when it is gone"
                )

    async def check_templates(
        self, service: str, spec: InstanceSpec, replicas: int, namespace: Namespace
    ) -> None:
        """Raise if a volume that copies of this service would have is somebody else's."""
        templates = [mount for mount in spec.mounts if mount.kind is MountKind.TEMPLATE]
        if not templates:
            return
        await self.table.sync()
        for mount in templates:
            for index in range(replicas):
                record = self.table.by_name(volume_name(mount.source, index), namespace)
                if record is not None and not is_of_template(record.value, service, mount.source):
                    raise errors.AlreadyExists(
                        f"volume {record.value.name} exists, and is not of service {service}; give the "
                        "template another name, or delete that volume"
                    )


def _check_same(existing: Volume, spec: VolumeSpec) -> None:
    if existing.is_deleting:
        raise errors.AlreadyExists(
            f"volume {existing.name!r} is being deleted; create it again after that, or choose another name"
        )
    if VolumeSpec.of(existing) != spec:
        raise errors.AlreadyExists(
            f"volume {existing.name!r} exists with another spec ({existing.size} GB), which cannot change; "
            "choose another name, or delete it first"
        )


def _in_use(volume: Volume, used_by: Sequence[str]) -> errors.FailedPrecondition:
    named = ", ".join(used_by[:_MAX_NAMED])
    more = f" and {len(used_by) - _MAX_NAMED} more" if len(used_by) > _MAX_NAMED else ""
    return errors.FailedPrecondition(f"volume {volume.name} is used by {named}{more}; delete those first")
