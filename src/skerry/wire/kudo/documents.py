"""Workloads and instances as Kudo's documents write them in JSON: every spelling in, one spelling out.

What comes in is laid over what is there, as a merge patch (RFC 7396) says: what is not given stays, null goes
back to the default. Making something is the same, over nothing. Amounts are thousandths of a core, MB and GB.
Pure; `rest_instances` and `rest_workloads` use it, and so may whoever else writes these documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skerry.model import errors, ports
from skerry.model.ports import PortMapping, Protocol
from skerry.model.room import NOTHING, Gigabytes, Megabytes, Millicores, Room
from skerry.model.statuses import Desired, Status
from skerry.model.workloads import Instance, Kind, Restart, RestartPolicy, Rollout, Spec, Workload

T = TypeVar("T")

_PARTS = ("cpu", "memory", "disk")
_DEFAULTS = Spec(name="needed", uri="needed")  # for everything but these two

Given: TypeAlias = T | UnsetType | None  # null is not the same as nothing
Amount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
InNamespace: TypeAlias = (
    Annotated[str, Meta(description="Where it is made, unless the address says so; for ever")] | UnsetType
)


class Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Amounts: `cpu` in thousandths of a core, `memory` in MB, `disk` in GB."""

    cpu: Given[Amount] = UNSET
    memory: Given[Amount] = UNSET
    disk: Given[Amount] = UNSET


class Resources(Resource, frozen=True, forbid_unknown_fields=True):
    """Amounts as they are, or under `max` or `limit`, which are the same; `usage` is not read."""

    max: Given[Resource] = UNSET
    limit: Given[Resource] = UNSET
    usage: Given[Resource] = UNSET


class Port(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`source` of the machine leads to `destination` (or `dest`) in the instance."""

    source: int
    destination: int | UnsetType = UNSET
    dest: int | UnsetType = UNSET
    protocol: Protocol = Protocol.TCP


class SpecInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to run, in any of the spellings; what is needed is `name` and `uri`."""

    name: Given[str] = UNSET
    type: Annotated[str, Meta(description="`CONTAINER`, in any case")] | UnsetType = UNSET
    uri: Given[Annotated[str, Meta(description="The image")]] = UNSET
    environment: Given[Annotated[list[str], Meta(description="`KEY=VALUE`, at most 100")]] = UNSET
    environnement: Given[list[str]] = UNSET
    env: Given[list[str]] = UNSET
    resources: Given[Resources] = UNSET
    ports: Given[Annotated[list[str | Port], Meta(description="`80`, `8080:80`, `53:53/udp`, objects")]] = (
        UNSET
    )
    port_mappings: Given[list[Port]] = UNSET
    restart: Given[Restart] = UNSET
    restart_budget: Given[Annotated[int, Meta(ge=0, le=1_000_000, description="Restarts in a row")]] = UNSET
    arguments: Given[Annotated[list[str], Meta(description="Instead of the image's command")]] = UNSET
    architecture: Given[Annotated[str, Meta(description="Of the node: `amd64`, `arm64`, ...")]] = UNSET
    constraints: Given[
        Annotated[list[str], Meta(description="On the node's labels: `zone=edge`, `disk!=slow`")]
    ] = UNSET

    @property
    def says_something(self) -> bool:
        """True if any part of a spec is given."""
        return any(getattr(self, name) is not UNSET for name in SpecInput.__struct_fields__)

    def onto(self, base: Spec | None = None) -> Spec:
        """The spec that this makes of `base`; raises `Invalid` or `Unprocessable` for what cannot be."""
        old = base or _DEFAULTS
        environment = _one_spelling(
            environment=self.environment, environnement=self.environnement, env=self.env
        )
        policy = RestartPolicy(
            _laid(self.restart, old.restart.when, RestartPolicy().when),
            _laid(self.restart_budget, old.restart.budget, RestartPolicy().budget),
        )
        return Spec(
            name=_needed("name", self.name, base.name if base else None),
            uri=_needed("uri", self.uri, base.uri if base else None),
            kind=old.kind if self.type is UNSET else kind_of(self.type),
            environment=tuple(_laid(environment, old.environment, ())),
            room=_room(self.resources, old.room),
            ports=_laid(
                _one_spelling(ports=_ports(self.ports), port_mappings=_ports(self.port_mappings)),
                old.ports,
                (),
            ),
            restart=policy,
            arguments=tuple(_laid(self.arguments, old.arguments, ())),
            architecture=_laid(self.architecture, old.architecture, ""),
            constraints=tuple(_laid(self.constraints, old.constraints, ())),
        )


class WorkloadInput(SpecInput, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A workload. An `id` of your own makes it safe to send this twice."""

    id: str | UnsetType = UNSET
    namespace: InNamespace = UNSET


class InstanceInput(SpecInput, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An instance: of a workload, or of a spec of its own."""

    id: str | UnsetType = UNSET
    namespace: InNamespace = UNSET
    status: Annotated[str, Meta(description="`RUNNING` or `STOPPED`; not read on creation")] | UnsetType = (
        UNSET
    )
    workload_id: Given[str] = UNSET
    workload_name: Given[str] = UNSET


class ResourceDocument(msgspec.Struct, frozen=True):
    """Amounts: `cpu` in thousandths of a core, `memory` in MB, `disk` in GB."""

    cpu: int
    memory: int
    disk: int


class ClaimDocument(msgspec.Struct, frozen=True):
    """What may be used, under both of its names, and what is used."""

    max: ResourceDocument
    limit: ResourceDocument
    usage: ResourceDocument


class PortDocument(msgspec.Struct, frozen=True):
    source: int
    destination: int
    protocol: Protocol


class WorkloadDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as the document has it, and behind `ports` what Skerry adds."""

    id: str
    name: str
    type: Kind
    uri: str
    environment: tuple[str, ...]
    resources: ResourceDocument
    ports: tuple[str, ...]
    port_mappings: tuple[PortDocument, ...]
    restart: Restart
    restart_budget: int
    arguments: tuple[str, ...]
    architecture: str
    constraints: tuple[str, ...]
    namespace: Annotated[str, Meta(description="In which its name is its own")]
    version: Annotated[int, Meta(description="Goes up with every change")]
    rollout: Annotated[Rollout, Meta(description="What this version means for instances of older ones")]
    created_at: Annotated[float, Meta(description="Seconds since the epoch")]


class InstanceDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An instance as the document has it, and behind `ports` what Skerry adds."""

    id: str
    name: str
    type: Kind
    status: Status
    uri: str
    environment: tuple[str, ...]
    resources: ClaimDocument
    ports: tuple[str, ...]
    port_mappings: tuple[PortDocument, ...]
    restart: Restart
    restart_budget: int
    arguments: tuple[str, ...]
    architecture: str
    constraints: tuple[str, ...]
    namespace: Annotated[str, Meta(description="Its workload's, if it has one")]
    desired: Annotated[Desired, Meta(description="What is wished of it")]
    since: Annotated[float, Meta(description="When `status` began, seconds since the epoch")]
    reason: Annotated[str, Meta(description="Why `status` is what it is, for people")]
    description: Annotated[str, Meta(description="`reason`, by the name it has in one of Kudo's documents")]
    status_description: Annotated[str, Meta(description="`reason`, by the name it has in the other")] = (
        msgspec.field(name="statusDescription")
    )
    exit_code: Annotated[int | None, Meta(description="Of the last run, if it ended")]
    restarts: int
    ip: Annotated[str, Meta(description="On its node; empty while it has none")]
    node_id: str | None
    workload_id: str | None
    workload_version: int
    generation: Annotated[int, Meta(description="Of the copy; goes up with each that replaces another")]
    created_at: Annotated[float, Meta(description="Seconds since the epoch")]


def workload_document(workload: Workload) -> WorkloadDocument:
    return WorkloadDocument(
        id=workload.id,
        resources=resource_document(workload.spec.room),
        namespace=workload.namespace,
        version=workload.version,
        rollout=workload.rollout,
        created_at=workload.created_at,
        **_spec_fields(workload.spec),
    )


def instance_document(instance: Instance, usage: Room) -> InstanceDocument:
    seen = instance.observed
    limit = resource_document(instance.spec.room)
    return InstanceDocument(
        id=instance.id,
        status=seen.status,
        resources=ClaimDocument(limit, limit, resource_document(usage)),
        namespace=instance.namespace,
        desired=instance.desired,
        since=seen.since,
        reason=seen.reason,
        description=seen.reason,
        status_description=seen.reason,
        exit_code=seen.exit_code,
        restarts=instance.restarts,
        ip=instance.ip,
        node_id=instance.node,
        workload_id=instance.workload,
        workload_version=instance.version,
        generation=instance.generation,
        created_at=instance.created_at,
        **_spec_fields(instance.spec),
    )


def resource_document(room: Room) -> ResourceDocument:
    return ResourceDocument(room.cpu, room.memory, room.disk)


def kind_of(text: str) -> Kind:
    """`CONTAINER` in any case; what Kudo knows and Skerry does not run is `Unprocessable`."""
    word = text.upper()
    if word == "VM":
        raise errors.Unprocessable("virtual machines are not run here; the type must be CONTAINER")
    if word != Kind.CONTAINER:  # cells are made by contracts of the market alone
        raise errors.Invalid(f"{text[:40]!r} is no type; it must be CONTAINER", field="type")
    return Kind.CONTAINER


def status_of(text: str, field: str) -> Status:
    """The status of that name, in any case."""
    try:
        return Status(text.strip().upper())
    except ValueError:
        known = ", ".join(Status)
        raise errors.Invalid(f"{text[:40]!r} is no status; they are {known}", field=field) from None


def _spec_fields(spec: Spec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "type": spec.kind,
        "uri": spec.uri,
        "environment": spec.environment,
        "ports": tuple(map(str, spec.ports)),
        "port_mappings": tuple(
            PortDocument(port.source, port.destination, port.protocol) for port in spec.ports
        ),
        "restart": spec.restart.when,
        "restart_budget": spec.restart.budget,
        "arguments": spec.arguments,
        "architecture": spec.architecture,
        "constraints": spec.constraints,
    }


def _laid(given: Given[T], base: T, default: T) -> T:
    if given is UNSET:
        return base
    return default if given is None else given


def _needed(field: str, given: Given[str], base: str | None) -> str:
    text = base if given is UNSET else given
    if text is None:
        raise errors.Invalid(f"`{field}` is needed", field=field)
    return text


def _one_spelling(**spellings: Given[T]) -> Given[T]:
    """The value that is given, by whichever name; by several names it must be the same."""
    given = {name: value for name, value in spellings.items() if value is not UNSET}
    first, *others = given.values() or (UNSET,)
    if any(other != first for other in others):
        names = " and ".join(f"`{name}`" for name in given)
        raise errors.Invalid(f"{names} mean the same and differ; give one of them", field=[*given][-1])
    return first


def _ports(given: Given[Sequence[str | Port]]) -> Given[tuple[PortMapping, ...]]:
    if given is UNSET or given is None:
        return given
    return tuple(ports.parse(port) if isinstance(port, str) else _mapping(port) for port in given)


def _mapping(port: Port) -> PortMapping:
    destination = _one_spelling(destination=port.destination, dest=port.dest)
    if not isinstance(destination, int):
        raise errors.Invalid("a port mapping needs `source` and `destination`", field="ports")
    return PortMapping(port.source, destination, port.protocol)


def _room(given: Given[Resources], base: Room) -> Room:
    if not isinstance(given, Resources):
        return _laid(given, base, NOTHING)
    amounts = {part: _laid(_amount(given, part), getattr(base, part), 0) for part in _PARTS}
    return Room(Millicores(amounts["cpu"]), Megabytes(amounts["memory"]), Gigabytes(amounts["disk"]))


def _amount(given: Resources, part: str) -> Given[int]:
    places: Mapping[str, Given[Resource]] = {
        part: given,
        f"max.{part}": given.max,
        f"limit.{part}": given.limit,
    }
    amounts = {
        place: None if resource is None else getattr(resource, part)
        for place, resource in places.items()
        if resource is not UNSET
    }
    return _one_spelling(**amounts)
