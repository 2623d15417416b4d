"""Specs in JSON documents: input in every spelling, output in one.

Input is a merge patch (RFC 7396) of the present spec, or of the defaults for a new one: fields that are not
given stay, null resets one to its default. Of several spellings of one field, those that are unchanged do not
count. Amounts are millicores, MB and GB. Pure; shared by Kudo's workloads and instances
(`skerry.wire.kudo.documents`) and by services, jobs and schedules of Skerry's own API.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from skerry.model import errors, ports
from skerry.model.callers import Caller
from skerry.model.images import ImageAccess, grant_access
from skerry.model.ports import PortMapping, Protocol
from skerry.model.resources import NO_RESOURCES, Gigabytes, Megabytes, Millicores, Resources
from skerry.model.workloads import (
    MAX_RESTART_BUDGET,
    InstanceSpec,
    MetricSource,
    RestartMode,
    RestartPolicy,
    UserNamespaceMode,
    WorkloadKind,
)
from skerry.node.images import references
from skerry.transport.access.spec_rules import check_host_mounts, check_userns
from skerry.wire.check_documents import (
    CheckDocument,
    CheckInput,
    MetricInput,
    check_documents,
    checks_of,
    metric_of,
)
from skerry.wire.option_documents import OptionalField, OptionsDocument, OptionsInput, option_fields

T = TypeVar("T")

_PARTS = ("cpu", "memory", "disk")
_MAX_WORD: Final = 40
_DIGITS: Final = 8
_DEFAULTS = InstanceSpec(name="needed", uri="needed")  # for everything but these two

Amount = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class AmountsInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Amounts: `cpu` in thousandths of a core, `memory` in MB, `disk` in GB."""

    cpu: OptionalField[Amount] = UNSET
    memory: OptionalField[Amount] = UNSET
    disk: OptionalField[Amount] = UNSET


class ResourcesInput(AmountsInput, frozen=True, forbid_unknown_fields=True):
    """Amounts, flat or under `max` or `limit`, which are the same; `usage` is ignored."""

    max: OptionalField[AmountsInput] = UNSET
    limit: OptionalField[AmountsInput] = UNSET
    usage: OptionalField[AmountsInput] = UNSET


class PortInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Port `source` of the node is forwarded to `destination` (or `dest`) of the instance."""

    source: int
    destination: int | UnsetType = UNSET
    dest: int | UnsetType = UNSET
    protocol: Protocol = Protocol.TCP


class SpecInput(OptionsInput, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A spec, in any of the spellings; `uri` is required. Without a `name` it gets one."""

    name: OptionalField[str] = UNSET
    type: Annotated[str, Meta(description="`CONTAINER`, in any case")] | UnsetType = UNSET
    uri: OptionalField[Annotated[str, Meta(description="The image")]] = UNSET
    environment: OptionalField[Annotated[list[str], Meta(description="`KEY=VALUE`, at most 100")]] = UNSET
    environnement: OptionalField[list[str]] = UNSET
    env: OptionalField[list[str]] = UNSET
    resources: OptionalField[ResourcesInput] = UNSET
    ports: OptionalField[
        Annotated[list[str | PortInput], Meta(description="`80`, `8080:80`, `53:53/udp`, objects")]
    ] = UNSET
    port_mappings: OptionalField[list[PortInput]] = UNSET
    restart: OptionalField[RestartMode] = UNSET
    restart_budget: OptionalField[
        Annotated[int, Meta(ge=0, le=MAX_RESTART_BUDGET, description="Restarts in a row; null: for ever")]
    ] = UNSET
    arguments: OptionalField[Annotated[list[str], Meta(description="Instead of the image's command")]] = UNSET
    architecture: OptionalField[Annotated[str, Meta(description="Of the node: `amd64`, `arm64`, ...")]] = (
        UNSET
    )
    constraints: OptionalField[
        Annotated[list[str], Meta(description="On the node's labels: `zone=edge`, `disk!=slow`")]
    ] = UNSET
    userns: OptionalField[
        Annotated[
            UserNamespaceMode,
            Meta(description="`private`: own user ids; `host`: its root is the node's, for admins"),
        ]
    ] = UNSET
    checks: OptionalField[
        Annotated[
            list[str | CheckInput],
            Meta(description="Health checks: objects, or texts such as `http:80/health` for readiness"),
        ]
    ] = UNSET
    spread: OptionalField[
        Annotated[list[str], Meta(description="Labels of nodes over whose values copies are spread")]
    ] = UNSET
    max_per_node: OptionalField[
        Annotated[int, Meta(description="Copies of one revision on one node; 0: any number")]
    ] = UNSET
    metric: OptionalField[Annotated[MetricInput, Meta(description="For autoscaling")]] = UNSET

    @property
    def is_given(self) -> bool:
        """True if any part of a spec is given."""
        return any(getattr(self, name) is not UNSET for name in SpecInput.__struct_fields__)

    def onto(
        self, base: InstanceSpec | None = None, *, caller_access: ImageAccess = ImageAccess.REGISTRIES
    ) -> InstanceSpec:
        """`base` with this input applied, for a caller with the access `caller_access`; raises `Invalid` or
        `Unprocessable` for invalid values, `Forbidden` for an image that the caller may not name."""
        old = base or _DEFAULTS
        policy = RestartPolicy(
            merge_field(self.restart, old.restart.when, RestartPolicy().when),
            merge_field(self.restart_budget, old.restart.budget, RestartPolicy().budget),
        )
        uri = _required("uri", self.uri, base.uri if base else None)
        return InstanceSpec(
            name=_required("name", self.name, base.name if base else None),
            uri=uri,
            kind=old.kind if self.type is UNSET else kind_of(self.type),
            environment=_one_of(
                None if base is None else base.environment,
                (),
                environment=_tuple(self.environment),
                environnement=_tuple(self.environnement),
                env=_tuple(self.env),
            ),
            resources=_decode_resources(self.resources, None if base is None else base.resources),
            ports=_one_of(
                None if base is None else base.ports,
                (),
                ports=_ports(self.ports),
                port_mappings=_ports(self.port_mappings),
            ),
            restart=policy,
            arguments=tuple(merge_field(self.arguments, old.arguments, ())),
            architecture=merge_field(self.architecture, old.architecture, ""),
            constraints=tuple(merge_field(self.constraints, old.constraints, ())),
            userns=merge_field(self.userns, old.userns, UserNamespaceMode.PRIVATE),
            granted_access=old.granted_access
            if self.uri is UNSET
            else grant_image_access(uri, caller_access, base),
            checks=old.checks if self.checks is UNSET else checks_of(self.checks or ()),
            spread=tuple(merge_field(self.spread, old.spread, ())),
            max_per_node=merge_field(self.max_per_node, old.max_per_node, 0),
            metric=metric_of(self.metric)
            if isinstance(self.metric, MetricInput)
            else merge_field(self.metric, old.metric, None),
            node=merge_field(self.node, old.node, ""),
            cpu_limit=self.cpu_limit_onto(old.cpu_limit),
            options=self.options_onto(old.options),
            secrets=self.secrets_onto(old.secrets),
            devices=self.devices_onto(old.devices),
            mounts=self.mounts_onto(old.mounts, caller_access),
            egress=self.egress_onto(old.egress, caller_access),
        )

    def named(self, seed: str) -> Self:
        """The same with a name: if none is given, one generated from the image and `seed`."""
        if isinstance(self.name, str) or not isinstance(self.uri, str):
            return self
        return replace(self, name=generated_name(self.uri, seed))

    def spec_from(self, caller: Caller, base: InstanceSpec | None = None) -> InstanceSpec:
        """`base` with this input of `caller` applied. Raises `Forbidden` for a spec that the caller may not
        use, also if that part is the base's."""
        if isinstance(self.uri, str):
            references.parse(self.uri)  # raises `Invalid`
        spec = self.onto(base, caller_access=caller.image_access)
        check_userns(spec.userns, caller)
        check_host_mounts(spec.mounts, caller)
        return spec


class ImageSpecInput(SpecInput, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A spec of Skerry's own API; `image` is required."""

    image: OptionalField[Annotated[str, Meta(description="The same as `uri`")]] = UNSET

    def with_uri(self, base: InstanceSpec | None = None) -> Self:
        """The same with the image as `uri`; raises `Invalid` if both are given and differ."""
        if self.image is UNSET:
            return self
        if self.uri not in (UNSET, self.image, base.uri if base else None):
            raise errors.Invalid(
                "`uri` and `image` mean the same and differ; give one of them", field="image"
            )
        return replace(self, uri=self.image)


class ResourceDocument(msgspec.Struct, frozen=True):
    """Amounts: `cpu` in thousandths of a core, `memory` in MB, `disk` in GB."""

    cpu: int
    memory: int
    disk: int


class PortDocument(msgspec.Struct, frozen=True):
    source: int
    destination: int
    protocol: Protocol


class TemplateDocument(OptionsDocument, frozen=True):
    """The spec of instances in responses of Skerry's own API."""

    image: str
    environment: tuple[str, ...]
    resources: ResourceDocument
    ports: tuple[str, ...]
    arguments: tuple[str, ...]
    architecture: str
    constraints: tuple[str, ...]
    userns: UserNamespaceMode
    checks: tuple[CheckDocument, ...]
    spread: tuple[str, ...]
    max_per_node: int
    metric: MetricSource | None


def template_fields(spec: InstanceSpec) -> dict[str, Any]:
    """The fields of a `TemplateDocument`."""
    own = set(TemplateDocument.__struct_fields__)
    fields = {name: value for name, value in spec_fields(spec).items() if name in own}
    return {**fields, "image": spec.uri, "resources": resource_document(spec.resources)}


def resource_document(resources: Resources) -> ResourceDocument:
    return ResourceDocument(resources.cpu, resources.memory, resources.disk)


def kind_of(text: str) -> WorkloadKind:
    """`CONTAINER` in any case; other types of Kudo are `Unprocessable`."""
    word = text.upper()
    if word == "VM":
        raise errors.Unprocessable("virtual machines are not run here; the type must be CONTAINER")
    if word != WorkloadKind.CONTAINER:  # cells are created by contracts of the market only
        raise errors.Invalid(f"{text[:40]!r} is no type; it must be CONTAINER", field="type")
    return WorkloadKind.CONTAINER


def grant_image_access(
    uri: str, caller_access: ImageAccess, before: InstanceSpec | None = None
) -> ImageAccess | None:
    """The access with which `uri` was given, as a spec records it; see `InstanceSpec.granted_access`."""
    old = before or _DEFAULTS
    access = grant_access(uri, caller_access, before=old.uri, access_before=old.image_access)
    return access if access is ImageAccess.ALL else None


def generated_name(uri: str, seed: str) -> str:
    """A generated name: the last part of the image, and digits from `seed`."""
    image = uri.partition("@")[0].rstrip("/").rpartition("/")[2].partition(":")[0]
    word = re.sub(r"[^A-Za-z0-9]+", "-", image)[:_MAX_WORD].strip("-") or "unnamed"
    return f"{word}-{hashlib.sha256(seed.encode()).hexdigest()[:_DIGITS]}"


def spec_fields(spec: InstanceSpec) -> dict[str, Any]:
    """The fields of a document for `spec`, without its resources."""
    return {
        "name": spec.name,
        "type": spec.kind,
        "uri": spec.uri,
        "environment": spec.environment,
        "env": spec.environment,
        "ports": tuple(map(str, spec.ports)),
        "port_mappings": tuple(
            PortDocument(port.source, port.destination, port.protocol) for port in spec.ports
        ),
        "restart": spec.restart.when,
        "restart_budget": spec.restart.budget,
        "arguments": spec.arguments,
        "architecture": spec.architecture,
        "constraints": spec.constraints,
        "userns": spec.userns,
        "checks": check_documents(spec.checks),
        "spread": spec.spread,
        "max_per_node": spec.max_per_node,
        "metric": spec.metric,
        **option_fields(spec),
    }


def merge_field(given: OptionalField[T], base: T, default: T) -> T:
    """A field of a merge patch: `base` if it is not given, `default` if it is null."""
    if given is UNSET:
        return base
    return default if given is None else given


def _required(field: str, given: OptionalField[str], base: str | None) -> str:
    text = base if given is UNSET else given
    if text is None:
        raise errors.Invalid(f"`{field}` is needed", field=field)
    return text


def _one_of(base: T | None, default: T, **spellings: OptionalField[T]) -> T:
    """The given value, by any of the names, or else the base; several names must have the same value.

    In a change (with a base), an unchanged spelling is ignored if another one differs: a client that reads a
    document, changes one spelling and sends all back means the changed one.
    """
    given = {name: default if value is None else value for name, value in spellings.items()}
    given_names: dict[str, T] = {
        name: value for name, value in given.items() if not isinstance(value, UnsetType)
    }
    if base is not None:
        given_names = {name: value for name, value in given_names.items() if value != base}
    first, *others = given_names.values() or (default if base is None else base,)
    if any(other != first for other in others):
        names = " and ".join(f"`{name}`" for name in given_names)
        raise errors.Invalid(f"{names} mean the same and differ; give one of them", field=[*given_names][-1])
    return first


def _tuple(given: OptionalField[list[str]]) -> OptionalField[tuple[str, ...]]:
    return tuple(given) if isinstance(given, list) else given


def _ports(given: OptionalField[Sequence[str | PortInput]]) -> OptionalField[tuple[PortMapping, ...]]:
    if given is UNSET or given is None:
        return given
    return tuple(ports.parse(port) if isinstance(port, str) else _mapping(port) for port in given)


def _mapping(port: PortInput) -> PortMapping:
    destination = _one_of(None, 0, destination=port.destination, dest=port.dest)
    if port.destination is UNSET and port.dest is UNSET:
        raise errors.Invalid("a port mapping needs `source` and `destination`", field="ports")
    return PortMapping(port.source, destination, port.protocol)


def _decode_resources(given: OptionalField[ResourcesInput], base: Resources | None) -> Resources:
    if not isinstance(given, ResourcesInput):
        return merge_field(given, base or NO_RESOURCES, NO_RESOURCES)
    cpu, memory, disk = (
        _amount(given, part, None if base is None else getattr(base, part)) for part in _PARTS
    )
    return Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))


def _amount(given: ResourcesInput, part: str, base: int | None) -> int:
    places: Mapping[str, OptionalField[AmountsInput]] = {
        part: given,
        f"max.{part}": given.max,
        f"limit.{part}": given.limit,
    }
    amounts: dict[str, OptionalField[int]] = {
        place: None if resource is None else getattr(resource, part)
        for place, resource in places.items()
        if resource is not UNSET
    }
    return _one_of(base, 0, **amounts)
