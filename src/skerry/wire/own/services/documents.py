"""Services, their copies, revisions and plans as JSON documents. Pure; `endpoints` returns them."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from skerry.control.services.copies import owner_of
from skerry.control.services.previews import ServicePreview
from skerry.control.services.registry import ServiceState
from skerry.model import service_ports
from skerry.model.callers import Caller
from skerry.model.services import (
    AutoscalePolicy,
    CountOrPercent,
    RevisionOutcome,
    ScalingMetric,
    Service,
    ServiceRevision,
    ServiceStatus,
    UpdateFailureAction,
    UpdateOrder,
)
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, MetricSource, RestartMode, UserNamespaceMode, WorkloadKind
from skerry.wire.check_documents import CheckDocument
from skerry.wire.diagnostic_documents import NodeVerdict, node_verdicts
from skerry.wire.option_documents import OptionsDocument
from skerry.wire.spec_documents import PortDocument, ResourceDocument, resource_document, spec_fields

_HIDDEN_FIELDS = ("port_mappings", "env")  # fields of a document that repeat others


class UpdateDocument(msgspec.Struct, frozen=True):
    """How copies follow a new revision; times are seconds."""

    order: UpdateOrder
    max_surge: CountOrPercent
    max_unavailable: CountOrPercent
    min_ready_s: float
    drain_s: float
    deadline_s: float
    max_failures: int
    canary: int
    promote_after_s: float | None
    on_failure: UpdateFailureAction


class BudgetDocument(msgspec.Struct, frozen=True):
    """How many copies may be out of service because nodes are drained."""

    max_unavailable: CountOrPercent


class AutoscaleDocument(msgspec.Struct, frozen=True):
    """Autoscaling: the range of replicas, and the metric."""

    min: int
    max: int
    metric: ScalingMetric
    target: float
    up_after_s: float
    down_after_s: float
    idle_s: float


class RolloutPhase(enum.StrEnum):
    """The phase of an update."""

    UPDATING = "updating"
    CANARY = "canary"
    REVERTING = "reverting"
    PAUSED = "paused"
    HALTED = "halted"  # it failed, and waits for a user to decide


class RolloutDocument(msgspec.Struct, frozen=True):
    """An update in progress. Times are seconds since the epoch."""

    phase: RolloutPhase
    good: Annotated[int, Meta(description="Copies of the new revision that have been ready for long enough")]
    of: Annotated[int, Meta(description="How many there must be")]
    since: float
    deadline: Annotated[
        float | None, Meta(description="When it fails without progress; null: no deadline now")
    ]
    reason: Annotated[str, Meta(description="Why it reverts, or was halted")]


class ServiceCopyDocument(msgspec.Struct, frozen=True):
    """One copy: an instance, which has a route of its own."""

    instance_id: str
    name: str
    index: Annotated[int, Meta(description="Its index; during an update two copies have the same")]
    revision: int
    node_id: str | None
    status: InstanceStatus
    ready: bool
    retiring: Annotated[bool, Meta(description="Out of service, and destroyed when it has drained")]
    reason: str
    check_message: str
    restarts: int
    ip: str
    ports: tuple[str, ...]
    created_at: float


class ServiceDocument(OptionsDocument, frozen=True):
    """A service."""

    id: str
    name: str
    namespace: str
    status: ServiceStatus
    replicas: int
    ready: Annotated[int, Meta(description="Copies that are in service")]
    revision: Annotated[int, Meta(description="The present revision, or the target of an update")]
    stable_revision: Annotated[int | None, Meta(description="The last good revision; null: none yet")]
    latest_revision: int
    paused: bool
    rollout: Annotated[RolloutDocument | None, Meta(description="null: no update in progress")]
    type: WorkloadKind
    image: str
    uri: Annotated[str, Meta(description="`image`, by the name that workloads have for it")]
    environment: tuple[str, ...]
    resources: ResourceDocument
    ports: tuple[str, ...]
    port_mappings: tuple[PortDocument, ...]
    restart: RestartMode
    restart_budget: int | None
    arguments: tuple[str, ...]
    architecture: str
    constraints: tuple[str, ...]
    userns: UserNamespaceMode
    checks: tuple[CheckDocument, ...]
    spread: tuple[str, ...]
    max_per_node: int
    metric: MetricSource | None
    update: UpdateDocument
    budget: BudgetDocument
    autoscale: AutoscaleDocument | None
    created_at: Annotated[float, Meta(description="Seconds since the epoch")]
    copies: Annotated[tuple[ServiceCopyDocument, ...], Meta(description="Not in lists")] | UnsetType = UNSET
    quota_message: Annotated[
        str, Meta(description="Why a missing copy is not created: the quota of its namespace; else empty")
    ] = ""
    address: Annotated[str, Meta(description="Its virtual address; empty: not assigned yet")] = ""
    service_ports: Annotated[
        tuple[str, ...], Meta(description="Ports of the virtual address; none: all ports")
    ] = ()
    affinity_s: Annotated[int, Meta(description="A client keeps its copy for so long; 0: never")] = 0


class RevisionDocument(msgspec.Struct, frozen=True):
    """One state of a service's template."""

    revision: int
    outcome: RevisionOutcome
    created_at: float
    actor: str
    image: str
    spec: Annotated[dict[str, Any], Meta(description="Its spec, with the fields of the service")]


class FieldChange(msgspec.Struct, frozen=True):
    """A field that would change."""

    field: str
    before: Any
    after: Any


class PlannedCopyDocument(msgspec.Struct, frozen=True):
    """A copy that would be created."""

    index: int
    node_id: Annotated[str | None, Meta(description="null: no node could take it now")]
    reason: Annotated[str, Meta(description="Why none can take it")]
    replaces: Annotated[str | None, Meta(description="The instance that it would replace")]


class ServicePlanDocument(msgspec.Struct, frozen=True):
    """The effects of a change. Nothing is written."""

    name: str
    namespace: str
    action: Annotated[str, Meta(description="`create`, `update` (a new revision), `change` or `none`")]
    revision: int
    changes: tuple[FieldChange, ...]
    order: Annotated[UpdateOrder, Meta(description="Order in which a copy is replaced")]
    order_reason: Annotated[str, Meta(description="Why it is stop-first")]
    surge: Annotated[int, Meta(description="Maximum copies above the replicas")]
    unavailable: Annotated[int, Meta(description="Maximum replicas that are not ready")]
    canaries: int
    created: Annotated[int, Meta(description="Copies that would be created in all")]
    copies: Annotated[tuple[PlannedCopyDocument, ...], Meta(description="The first 100 of them")]
    nodes: Annotated[
        tuple[NodeVerdict, ...], Meta(description="The feasibility of every node for the first of them")
    ]


def service_document(state: ServiceState) -> ServiceDocument:
    return msgspec.structs.replace(service_summary(state), copies=tuple(map(_copy, state.copies)))


def service_summary(state: ServiceState) -> ServiceDocument:
    """A service without its copies, of which there may be thousands."""
    service = state.service
    return ServiceDocument(
        id=service.id,
        status=service.status(state.ready),
        ready=state.ready,
        revision=service.target.number,
        stable_revision=service.stable.number if service.stable else None,
        latest_revision=service.latest,
        paused=service.is_paused,
        rollout=_rollout(state),
        created_at=service.created_at,
        quota_message=service.quota_message,
        address=service.address,
        **_decided(service),
    )


def revision_document(revision: ServiceRevision) -> RevisionDocument:
    spec = msgspec.to_builtins(_template(revision))
    return RevisionDocument(
        revision.number, revision.outcome, revision.created_at, revision.actor, revision.template.uri, spec
    )


def plan_document(preview: ServicePreview, caller: Caller) -> ServicePlanDocument:
    before, after = preview.before, preview.after
    bounds = after.bounds
    return ServicePlanDocument(
        after.name,
        after.namespace,
        _action(before, after),
        after.target.number,
        _changes(before, after),
        UpdateOrder.STOP_FIRST if bounds.is_stop_first else UpdateOrder.START_FIRST,
        bounds.reason,
        bounds.surge,
        bounds.unavailable,
        after.update.canary if after.rollout is not None and after.rollout.is_canary else 0,
        preview.created,
        tuple(
            PlannedCopyDocument(copy.index, copy.node, copy.reason, copy.replaces) for copy in preview.copies
        ),
        node_verdicts(preview.nodes, caller),
    )


def _action(before: Service | None, after: Service) -> str:
    if before is None:
        return "create"
    if before == after:
        return "none"
    return "change" if before.target.number == after.target.number else "update"


def _changes(before: Service | None, after: Service) -> tuple[FieldChange, ...]:
    if before is None:
        return ()
    old, new = (msgspec.to_builtins(_decided(service)) for service in (before, after))
    return tuple(
        FieldChange(field, old[field], new[field])
        for field in new
        if old[field] != new[field] and field not in (*_HIDDEN_FIELDS, "uri")
    )


def _decided(service: Service) -> dict[str, Any]:
    """The fields that users set."""
    return {
        "namespace": service.namespace,
        "replicas": service.replicas,
        **_template(service.target),
        "update": UpdateDocument(*msgspec.structs.astuple(service.update)),
        "budget": BudgetDocument(service.budget.max_unavailable),
        "autoscale": _autoscale(service.autoscale),
        "service_ports": tuple(map(service_ports.write, service.ports)),
        "affinity_s": service.affinity_s,
    }


def _template(revision: ServiceRevision) -> dict[str, Any]:
    fields = spec_fields(revision.template)
    del fields["env"]
    resources = resource_document(revision.template.resources)
    return {**fields, "image": revision.template.uri, "resources": resources}


def _autoscale(policy: AutoscalePolicy | None) -> AutoscaleDocument | None:
    return None if policy is None else AutoscaleDocument(*msgspec.structs.astuple(policy))


def _rollout(state: ServiceState) -> RolloutDocument | None:
    service, rollout = state.service, state.service.rollout
    if rollout is None:
        return None
    waits = (
        rollout.is_halted or service.is_paused or rollout.is_revert or rollout.canaries_good_at is not None
    )
    canaries = min(service.update.canary, service.replicas)
    return RolloutDocument(
        _phase(service),
        state.good,
        canaries if rollout.is_canary else service.replicas,
        rollout.started_at,
        None if waits or rollout.is_revert else rollout.progress_at + service.update.deadline_s,
        rollout.reason,
    )


def _phase(service: Service) -> RolloutPhase:
    rollout = service.rollout
    assert rollout is not None, "there is an update"
    if rollout.is_halted:
        return RolloutPhase.HALTED
    if service.is_paused:
        return RolloutPhase.PAUSED
    if rollout.is_revert:
        return RolloutPhase.REVERTING
    return RolloutPhase.CANARY if rollout.is_canary else RolloutPhase.UPDATING


def _copy(copy: Instance) -> ServiceCopyDocument:
    owner = owner_of(copy)
    return ServiceCopyDocument(
        instance_id=copy.id,
        name=copy.spec.name,
        index=owner.index,
        revision=owner.revision,
        node_id=copy.node,
        status=copy.observed.status,
        ready=copy.is_ready,
        retiring=copy.retiring_at is not None,
        reason=copy.observed.reason,
        check_message=copy.observed.check_message,
        restarts=copy.restarts,
        ip=copy.ip,
        ports=tuple(map(str, copy.spec.ports)),
        created_at=copy.created_at,
    )
