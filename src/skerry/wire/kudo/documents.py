"""Workloads and instances as JSON documents of Kudo.

Their specs are in `skerry.wire.spec_documents`. A document that was read can be sent back whole: read-only
fields are accepted if they are unchanged (`check_unchanged`). Pure; used by `rest_instances` and
`rest_workloads`.
"""

from __future__ import annotations

import functools
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skerry.model import errors
from skerry.model.resources import Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import (
    Instance,
    MetricSource,
    RestartMode,
    RolloutStrategy,
    UserNamespaceMode,
    Workload,
    WorkloadKind,
)
from skerry.wire.check_documents import CheckDocument
from skerry.wire.option_documents import OptionalField, OptionsDocument
from skerry.wire.spec_documents import (
    PortDocument,
    ResourceDocument,
    SpecInput,
    resource_document,
    spec_fields,
)

ReadOnly: TypeAlias = (
    Annotated[
        str | bool | int | float | list[str] | None,
        Meta(description="Written by the server; accepted as it was read"),
    ]
    | UnsetType
)
InNamespace: TypeAlias = (
    Annotated[
        str, Meta(description="Namespace in which it is created, unless the path names it; it cannot change")
    ]
    | UnsetType
)


class WorkloadInput(SpecInput, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A workload. With an `id` of your own the request can be repeated."""

    id: str | UnsetType = UNSET
    namespace: InNamespace = UNSET
    kind: Annotated[Literal["workload"], Meta(description="For clients that write it")] | UnsetType = UNSET
    version: ReadOnly = UNSET
    rollout: ReadOnly = UNSET
    created_at: ReadOnly = UNSET


class InstanceInput(SpecInput, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An instance: of a workload, or with a spec of its own."""

    id: str | UnsetType = UNSET
    namespace: InNamespace = UNSET
    status: Annotated[str, Meta(description="`RUNNING` or `STOPPED`; not read on creation")] | UnsetType = (
        UNSET
    )
    workload_id: OptionalField[str] = UNSET
    workload_name: OptionalField[str] = UNSET
    # Those that change by themselves first: an outdated document is refused for one of these.
    since: ReadOnly = UNSET
    ready: ReadOnly = UNSET
    check_message: ReadOnly = UNSET
    desired: ReadOnly = UNSET
    reason: ReadOnly = UNSET
    description: ReadOnly = UNSET
    status_description: ReadOnly = msgspec.field(default=UNSET, name="statusDescription")
    exit_code: ReadOnly = UNSET
    previous_exit_code: ReadOnly = UNSET
    retry_at: ReadOnly = UNSET
    restarts: ReadOnly = UNSET
    ip: ReadOnly = UNSET
    ip6: ReadOnly = UNSET
    node_id: ReadOnly = UNSET
    workload_version: ReadOnly = UNSET
    owner: ReadOnly = UNSET
    generation: ReadOnly = UNSET
    assigned_devices: ReadOnly = UNSET
    created_at: ReadOnly = UNSET


class ClaimDocument(ResourceDocument, frozen=True):
    """Limits, flat and under both of their names, and usage."""

    max: ResourceDocument
    limit: ResourceDocument
    usage: ResourceDocument


class WorkloadDocument(OptionsDocument, frozen=True):
    """A workload; the fields after `ports` are Skerry's additions."""

    kind: Annotated[Literal["workload"], Meta(description="For Kudo's CLI")]
    id: str
    name: str
    type: WorkloadKind
    uri: str
    environment: tuple[str, ...]
    env: Annotated[tuple[str, ...], Meta(description="`environment`, by the name that Kudo's CLI has for it")]
    resources: ResourceDocument
    ports: tuple[str, ...]
    port_mappings: tuple[PortDocument, ...]
    restart: RestartMode
    restart_budget: Annotated[int | None, Meta(description="Restarts in a row; null: for ever")]
    arguments: tuple[str, ...]
    architecture: str
    constraints: tuple[str, ...]
    userns: UserNamespaceMode
    checks: tuple[CheckDocument, ...]
    spread: tuple[str, ...]
    max_per_node: int
    metric: MetricSource | None
    namespace: Annotated[str, Meta(description="Namespace in which its name is unique")]
    version: Annotated[int, Meta(description="Goes up with every change")]
    rollout: Annotated[
        RolloutStrategy, Meta(description="Whether instances of older versions follow this one")
    ]
    created_at: Annotated[float, Meta(description="Seconds since the epoch")]


class InstanceDocument(OptionsDocument, frozen=True):
    """An instance; the fields after `ports` are Skerry's additions."""

    id: str
    name: str
    type: WorkloadKind
    status: InstanceStatus
    uri: str
    environment: tuple[str, ...]
    env: Annotated[tuple[str, ...], Meta(description="`environment`, by the name that Kudo's CLI has for it")]
    resources: ClaimDocument
    ports: tuple[str, ...]
    port_mappings: tuple[PortDocument, ...]
    restart: RestartMode
    restart_budget: Annotated[int | None, Meta(description="Restarts in a row; null: for ever")]
    arguments: tuple[str, ...]
    architecture: str
    constraints: tuple[str, ...]
    userns: UserNamespaceMode
    checks: tuple[CheckDocument, ...]
    spread: tuple[str, ...]
    max_per_node: int
    metric: MetricSource | None
    namespace: Annotated[str, Meta(description="Its workload's, if it has one")]
    desired: Annotated[DesiredStatus, Meta(description="Desired status")]
    since: Annotated[float, Meta(description="When `status` began, seconds since the epoch")]
    reason: Annotated[str, Meta(description="Reason of `status`, for people")]
    description: Annotated[str, Meta(description="`reason`, by the name it has in one of Kudo's documents")]
    status_description: Annotated[str, Meta(description="`reason`, by the name it has in the other")] = (
        msgspec.field(name="statusDescription")
    )
    ready: Annotated[bool, Meta(description="RUNNING, has passed its health checks, and in service")]
    check_message: Annotated[str, Meta(description="Why its checks have not passed; empty: they have")]
    exit_code: Annotated[int | None, Meta(description="Of the last run, if it ended")]
    retry_at: Annotated[
        float | None,
        Meta(description="Time of its next restart, seconds since the epoch; null: none is pending"),
    ]
    restarts: int
    ip: Annotated[str, Meta(description="On its node; empty while it has none")]
    node_id: str | None
    workload_id: str | None
    workload_version: int
    owner: Annotated[str, Meta(description="Its owner, such as `service/web`; empty: a user created it")]
    generation: Annotated[int, Meta(description="Goes up with every replacement")]
    created_at: Annotated[float, Meta(description="Seconds since the epoch")]
    assigned_devices: Annotated[
        tuple[str, ...], Meta(description="Of its node, for it alone, by their CDI names")
    ] = ()
    ip6: Annotated[str, Meta(description="Its IPv6 address; empty while it has none")] = ""
    previous_exit_code: Annotated[
        int | None, Meta(description="Of the run before the last one; null: there was none, or it is unknown")
    ] = None


def workload_document(workload: Workload) -> WorkloadDocument:
    return WorkloadDocument(
        kind="workload",
        id=workload.id,
        resources=resource_document(workload.spec.resources),
        namespace=workload.namespace,
        version=workload.version,
        rollout=workload.rollout,
        created_at=workload.created_at,
        **spec_fields(workload.spec),
    )


def instance_document(instance: Instance, usage: Resources) -> InstanceDocument:
    seen = instance.observed
    limit = resource_document(instance.spec.resources)
    return InstanceDocument(
        id=instance.id,
        status=seen.status,
        resources=ClaimDocument(limit.cpu, limit.memory, limit.disk, limit, limit, resource_document(usage)),
        namespace=instance.namespace,
        desired=instance.desired,
        since=seen.since,
        reason=seen.reason,
        description=seen.reason,
        status_description=seen.reason,
        ready=instance.is_ready,
        check_message=seen.check_message,
        exit_code=seen.exit_code,
        previous_exit_code=seen.previous_exit_code,
        retry_at=seen.retry_at,
        restarts=instance.restarts,
        ip=instance.ip,
        ip6=instance.ip6,
        node_id=instance.node,
        workload_id=instance.workload,
        workload_version=instance.version,
        owner=f"{instance.owner.kind}/{instance.owner.name}" if instance.owner else "",
        generation=instance.generation,
        created_at=instance.created_at,
        assigned_devices=instance.devices,
        **spec_fields(instance.spec),
    )


def check_unchanged(
    given: WorkloadInput | InstanceInput, present: WorkloadDocument | InstanceDocument | None
) -> None:
    """Raise unless all read-only fields are as in `present`; None: the object does not exist yet."""
    written = {
        encoded: value
        for name, encoded in _read_only(type(given))
        if (value := getattr(given, name)) is not UNSET
    }
    if not written:
        return
    if present is None:
        field = next(iter(written))
        raise errors.Invalid(f"`{field}` is written by the server; leave it out", field=field)
    shown = msgspec.to_builtins(present)
    for field, value in written.items():
        now = list(shown[field]) if isinstance(shown[field], tuple) else shown[field]
        if value != now:
            raise errors.Invalid(
                f"`{field}` cannot be changed, and is {'null' if now is None else repr(now)} now; "
                "read it again, or leave it out",
                field=field,
            )


@functools.cache
def _read_only(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """The read-only fields of `kind`: their names here and in JSON."""
    return tuple(
        (field.name, field.encode_name) for field in msgspec.structs.fields(kind) if field.type == ReadOnly
    )


def status_of(text: str, field: str) -> InstanceStatus:
    """The status of that name, in any case."""
    try:
        return InstanceStatus(text.strip().upper())
    except ValueError:
        known = ", ".join(InstanceStatus)
        raise errors.Invalid(f"{text[:40]!r} is no status; they are {known}", field=field) from None
