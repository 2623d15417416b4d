"""Where the volumes of instances are, for the placement planner. No I/O, clock or randomness.

An instance can be placed only where its volumes are; a volume that is nowhere is bound to the node that its
first user is placed on, in the transaction that places the user. Every placement writes the records of the
volumes: so a volume is never bound twice, and never deleted while it gets a user. While such a transaction
is under way, no other instance with one of its volumes is placed. The disk of a node is accounted for the
sizes of its volumes, whether or not anything uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from skerry.control.volumes.table import VolumeRecord
from skerry.model.ids import InstanceId, Namespace, NodeId, VolumeId
from skerry.model.mounts import Mount
from skerry.model.resources import Gigabytes, Resources
from skerry.model.volumes import Volume, VolumeStatus
from skerry.model.workloads import Instance
from skerry.schedule.requests import PlacementRequest, VolumePlace
from skerry.schedule.scheduler import Scheduler


class VolumeLookup(Protocol):
    """The part of `skerry.control.volumes.table.VolumeTable` that is needed here."""

    def by_name(self, name: str, namespace: Namespace | None = None) -> VolumeRecord | None: ...


class NoVolumes:
    """There are none."""

    def by_name(self, name: str, namespace: Namespace | None = None) -> VolumeRecord | None:
        return None


class VolumeWrite(NamedTuple):
    """A volume as it is to be written, over `record`."""

    record: VolumeRecord
    after: Volume


class VolumeBindings:
    """The volumes of instances, and what placement does about them."""

    def __init__(self, volumes: VolumeLookup, scheduler: Scheduler) -> None:
        self._volumes = volumes
        self._scheduler = scheduler
        self._users: dict[tuple[Namespace, str], set[InstanceId]] = {}  # by the volumes that they name
        self._names: dict[InstanceId, tuple[tuple[Namespace, str], ...]] = {}
        self._in_progress: dict[InstanceId, tuple[VolumeWrite, ...]] = {}
        self._busy: dict[VolumeId, NodeId] = {}  # being written, with the node that they will be on
        self._deferred: dict[InstanceId, None] = {}  # wait for that

    # What is known

    def instance_changed(self, id: InstanceId, instance: Instance | None) -> None:
        """Index an instance by the volumes that it uses; None: it is gone."""
        names: tuple[tuple[Namespace, str], ...] = ()
        if instance is not None and instance.spec.mounts:
            names = tuple((instance.namespace, name) for name in instance.spec.volume_names)
        before = self._names.pop(id, ())
        if names:
            self._names[id] = names
        if before == names:
            return
        for key in before:
            self._users[key].discard(id)
            if not self._users[key]:
                del self._users[key]
        for key in names:
            self._users.setdefault(key, set()).add(id)

    def volume_changed(self, before: VolumeRecord | None, after: VolumeRecord | None) -> Iterator[NodeId]:
        """Account for a volume; yields nodes that may have more disk free than before."""
        for record in (before, after):
            if record is not None and record.value.id not in self._busy:
                yield from self._account(record.value.id, after)
                return

    def users_of(self, volume: Volume) -> Iterable[InstanceId]:
        """Instances that name it."""
        return tuple(self._users.get((volume.namespace, volume.name), ()))

    def is_at(self, instance: Instance, node: NodeId) -> bool:
        """True if a volume of the instance is on that node: it cannot run anywhere else."""
        return any(volume is not None and volume.node == node for volume in self._of(instance))

    # Placement

    def add_to(
        self, request: PlacementRequest, instance: Instance, *, is_preview: bool = False
    ) -> PlacementRequest:
        """The request of an instance that is to be placed, with what its volumes require. In a preview,
        volumes of templates may not exist yet."""
        if not instance.spec.mounts:
            return request
        places: list[VolumePlace] = []
        constraints: list[str] = []
        unbound: dict[VolumeId, int] = {}
        mounts = [mount for mount in instance.spec.mounts if mount.is_volume]
        for mount, volume in zip(mounts, self._of(instance), strict=True):
            name = mount.source
            if volume is None and mount.is_exclusive and is_preview:
                unbound[VolumeId(name)] = mount.size
            elif volume is None or not volume.is_usable or not _may_use(instance, mount, volume):
                places.append(VolumePlace(name, ""))
            elif (node := self._busy.get(volume.id, volume.node)) is not None:
                places.append(VolumePlace(name, node))
            else:
                unbound[volume.id] = volume.size
                constraints += volume.constraints
                if volume.pin:
                    places.append(VolumePlace(name, volume.pin))
        resources = request.resources
        return replace(
            request,
            volumes=tuple(places),
            constraints=(*request.constraints, *constraints),
            resources=replace(resources, disk=Gigabytes(resources.disk + sum(unbound.values()))),
        )

    def is_busy(self, instance: Instance) -> bool:
        """True if a volume of it is being written; then it is returned by `done`, to be tried again."""
        if not instance.spec.mounts:
            return False
        is_busy = any(volume is not None and volume.id in self._busy for volume in self._of(instance))
        if is_busy:
            self._deferred[instance.id] = None
        return is_busy

    def bind(self, instance: Instance, node: NodeId, now: float) -> tuple[VolumeWrite, ...]:
        """Bind its volumes to the node that it is placed on; what is to be written with it, one for each."""
        if not instance.spec.volume_names:
            return ()
        writes: dict[VolumeId, VolumeWrite] = {}
        for name in instance.spec.volume_names:
            record = self._volumes.by_name(name, instance.namespace)
            assert record is not None, "an instance without its volume fits nowhere"
            volume = record.value
            after = replace(volume, bound_at=now)
            if volume.node is None:
                after = replace(
                    after,
                    node=node,
                    status=VolumeStatus.CREATING,
                    reason=f"bound with instance {instance.id}",
                    since=now,
                )
            writes[volume.id] = VolumeWrite(record, after)
        self._in_progress[instance.id] = tuple(writes.values())
        for id, write in writes.items():
            self._busy[id] = node
            self._bind_disk(id, write.after)
        return tuple(writes.values())

    def done(self, ids: Iterable[InstanceId]) -> Iterator[InstanceId]:
        """What was to be written with these is known here, or failed; yields instances that waited for it."""
        is_any = False
        for instance in ids:
            for write in self._in_progress.pop(instance, ()):
                is_any = True
                volume = write.after
                self._busy.pop(volume.id, None)
                for _ in self._account(volume.id, self._volumes.by_name(volume.name, volume.namespace)):
                    pass
        if is_any:  # those that still have to wait are deferred again
            deferred, self._deferred = self._deferred, {}
            yield from deferred

    def volume_ids(self, instance: Instance) -> tuple[VolumeId, ...]:
        """The volumes that the mounts of its spec are, in their order."""
        return tuple(VolumeId("") if volume is None else volume.id for volume in self._of(instance))

    def waits_for(self, instance: Instance, describe: Callable[[NodeId], str]) -> str:
        """Why an instance waits that can be on one node only, because of a volume; empty: it can be anywhere.
        `describe` says why that node cannot take it."""
        mounts = [mount for mount in instance.spec.mounts if mount.is_volume]
        for mount, volume in zip(mounts, self._of(instance), strict=True):
            name = mount.source
            if volume is None:
                hint = "" if mount.is_exclusive else f"; skerry volume create {name} --size 1"
                return f"waits for volume {name}, which does not exist{hint}"
            if not _may_use(instance, mount, volume):
                return f"waits for volume {name}, which exists and is not of its service; delete or rename it"
            if volume.is_deleting:
                return f"waits for volume {name}, which is being deleted"
            if volume.is_held:
                return f"waits for volume {name}, which is being moved or restored"
            if volume.node is not None:
                return f"waits for volume {name} on {describe(volume.node)}"
        return ""

    def _of(self, instance: Instance) -> list[Volume | None]:
        """The volumes of an instance, one for each mount."""
        found = (self._volumes.by_name(name, instance.namespace) for name in instance.spec.volume_names)
        return [None if record is None else record.value for record in found]

    def _account(self, id: VolumeId, record: VolumeRecord | None) -> Iterator[NodeId]:
        volume = None if record is None or record.value.id != id else record.value
        before = self._scheduler.node_of(_disk_request_id(id))
        if volume is None or volume.node is None:
            self._scheduler.unbind(_disk_request_id(id))
        else:
            self._bind_disk(id, volume)
        if before is not None:
            yield before

    def _bind_disk(self, id: VolumeId, volume: Volume) -> None:
        assert volume.node is not None
        request = PlacementRequest(_disk_request_id(id), Resources(disk=volume.size), has_address=False)
        if (self._scheduler.node_of(request.instance), self._scheduler.request_of(request.instance)) != (
            volume.node,
            request,
        ):
            self._scheduler.bind(volume.node, request)


def _may_use(instance: Instance, mount: Mount, volume: Volume) -> bool:
    """A volume of a template is for the copies of one service."""
    if not mount.is_exclusive:
        return True
    owner = instance.owner
    return owner is not None and volume.owner is not None and volume.owner.service == owner.name


def _disk_request_id(id: VolumeId) -> InstanceId:
    """The id under which the disk of a volume is bound; no instance can have it."""
    return InstanceId(f"volume/{id}")
