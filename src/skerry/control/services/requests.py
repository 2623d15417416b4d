"""What people request of a service, and what its record becomes by that: pure.

`skerry.control.services.registry` writes it down; which copies follow is `skerry.control.services.decisions`.
Whatever cannot be is refused here or by the model, before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from skerry.control.services import rollouts
from skerry.model import errors, secret_versions
from skerry.model.ids import Namespace, ServiceId
from skerry.model.network_objects import ServicePort
from skerry.model.secret_versions import SecretVersions
from skerry.model.services import (
    MAX_REVISIONS,
    AutoscalePolicy,
    DisruptionBudget,
    RevisionOutcome,
    ScalingMetric,
    Service,
    ServiceRevision,
    UpdatePolicy,
)
from skerry.model.workloads import InstanceSpec


class ServiceSpec(msgspec.Struct, frozen=True):
    """All of a service that people decide."""

    template: InstanceSpec
    replicas: int = 1
    update: UpdatePolicy = UpdatePolicy()
    budget: DisruptionBudget = DisruptionBudget()
    autoscale: AutoscalePolicy | None = None
    ports: tuple[ServicePort, ...] = ()  # of the virtual address
    affinity_s: int = 0

    @classmethod
    def of(cls, service: Service) -> ServiceSpec:
        return cls(
            service.target.template,
            service.replicas,
            service.update,
            service.budget,
            service.autoscale,
            service.ports,
            service.affinity_s,
        )


class ServiceChange(NamedTuple):
    """What a request makes of a service, and the event that records it: `kind` without its noun."""

    service: Service
    kind: str
    reason: str = ""
    revision: ServiceRevision | None = None  # that is new


def create(
    id: ServiceId, spec: ServiceSpec, *, namespace: Namespace, now: float, actor: str, request_id: str = ""
) -> Service:
    """A service with its first revision, whose update is in progress."""
    _check(spec)
    if (scaling := spec.autoscale) is not None and not scaling.min <= spec.replicas <= scaling.max:
        raise errors.Invalid(
            f"{spec.replicas} replicas are not between the {scaling.min} and {scaling.max} of autoscaling",
            field="replicas",
        )
    return Service(
        id,
        spec.template.name,
        ServiceRevision(1, spec.template, now, actor),
        now,
        replicas=spec.replicas,
        namespace=namespace,
        update=spec.update,
        budget=spec.budget,
        autoscale=spec.autoscale,
        rollout=rollouts.begin(now),
        request_id=request_id,
        ports=spec.ports,
        affinity_s=spec.affinity_s,
    )


def is_same(service: Service, spec: ServiceSpec) -> bool:
    """True if `service` has this `spec`; replicas that autoscaling set do not count."""
    if service.autoscale is not None:
        spec = replace(spec, replicas=service.replicas)
    present = ServiceSpec.of(service)
    # Versions of secrets are the server's: which there are now does not matter.
    given, present = (
        replace(one, template=secret_versions.without_versions(one.template)) for one in (spec, present)
    )
    return given == present


def follow_secrets(
    service: Service,
    revisions: Sequence[ServiceRevision],
    secrets: SecretVersions,
    *,
    now: float,
    actor: str,
) -> ServiceChange | None:
    """The service with a revision that uses newer versions of its secrets; None if there are none.

    A version that any of its revisions used is not tried again: its update failed, or it was rolled back.
    """
    template = service.target.template
    tried = [use for revision in revisions for use in revision.template.secrets]
    uses = secret_versions.follow(template.secrets, service.namespace, secrets, tried)
    if uses is None or service.is_deleting:
        return None
    spec = replace(ServiceSpec.of(service), template=replace(template, secrets=uses))
    changed = change(service, spec, now=now, actor=actor)
    newer = ", ".join(
        dict.fromkeys(
            f"{use.kind} {use.name} has version {use.version}"
            for use, old in zip(uses, template.secrets, strict=True)
            if use.version != old.version
        )
    )
    return None if changed is None else changed._replace(reason=newer)


def change(service: Service, spec: ServiceSpec, *, now: float, actor: str) -> ServiceChange | None:
    """The service with this `spec`; None if it has it already. Another template is a new revision."""
    _check(spec)
    if spec.template.name != service.name:
        raise errors.Invalid(
            f"the name of a service cannot change; create another as {spec.template.name[:50]!r}",
            field="name",
        )
    after = replace(
        service,
        replicas=_replicas(service, spec),
        update=spec.update,
        budget=spec.budget,
        autoscale=spec.autoscale,
        ports=spec.ports,
        affinity_s=spec.affinity_s,
    )
    revision = None
    if spec.template != service.target.template:
        revision = ServiceRevision(service.latest + 1, spec.template, now, actor)
        is_canary = spec.update.canary > 0 and service.stable is not None
        rollout = rollouts.begin(now, is_canary=is_canary)
        after = replace(after, target=revision, latest=revision.number, rollout=rollout)
    return None if after == service else ServiceChange(after, "changed", revision=revision)


def scale(service: Service, replicas: int) -> ServiceChange | None:
    if service.autoscale is not None:
        raise _decided_by_autoscaling(service, service.autoscale)
    if replicas == service.replicas:
        return None
    return ServiceChange(replace(service, replicas=replicas), "scaled", f"from {service.replicas}")


def wake(service: Service) -> ServiceChange | None:
    """The first copy of a service that was scaled to zero, because requests wait for it."""
    scaling = service.autoscale
    if scaling is None or service.replicas or service.is_deleting or service.is_paused:
        return None
    return ServiceChange(replace(service, replicas=max(1, scaling.min)), "scaled", "requests wait for it")


def roll_back(
    service: Service, revisions: Sequence[ServiceRevision], number: int | None, *, now: float
) -> ServiceChange | None:
    """Back to revision `number`, or to the last that was good before the present one.

    It also resumes a paused service: a rollback must not wait.
    """
    rollout = service.rollout
    is_going = rollout is not None and not rollout.is_halted
    if number is None and rollout is not None and rollout.is_revert and is_going:
        return None
    to = _last_good(service, revisions) if number is None else _stored(service, revisions, number)
    if to.number == service.target.number:
        if is_going:
            return None
        if rollout is None:
            raise errors.FailedPrecondition(f"service {service.name} is at revision {to.number} already")
    reason = f"from revision {service.target.number} to {to.number}"
    if service.stable is not None and to.number == service.stable.number:
        after = rollouts.revert(service, service.stable, f"rolled back {reason}", now)
    else:
        after = replace(service, target=to, rollout=rollouts.begin(now))
    return ServiceChange(replace(after, is_paused=False), "rolledback", reason)


def promote(service: Service, *, now: float) -> ServiceChange:
    rollout = service.rollout
    if rollout is None or not rollout.is_canary:
        raise errors.FailedPrecondition(
            f"service {service.name} has no canaries that could be promoted; an update with `canary` makes "
            "some"
        )
    if rollout.is_halted:
        raise errors.FailedPrecondition(
            f"the canaries of service {service.name} failed: {rollout.reason}; resume the update to try them "
            "again, or roll it back"
        )
    return ServiceChange(replace(service, rollout=rollouts.promote(rollout, now)), "promoted")


def pause(service: Service) -> ServiceChange | None:
    return None if service.is_paused else ServiceChange(replace(service, is_paused=True), "paused")


def resume(service: Service, *, now: float) -> ServiceChange | None:
    """Go on with an update that is paused or was halted by a failure, with its whole deadline."""
    rollout = service.rollout
    if not service.is_paused and (rollout is None or not rollout.is_halted):
        return None
    if rollout is not None:
        # What failed before counts no more, or it would be halted again at once.
        started_at = now if rollout.is_halted else rollout.started_at
        rollout = replace(rollout, started_at=started_at, progress_at=now, is_halted=False, reason="")
    return ServiceChange(replace(service, is_paused=False, rollout=rollout), "resumed")


def delete(service: Service) -> ServiceChange | None:
    return None if service.is_deleting else ServiceChange(replace(service, is_deleting=True), "deleted")


def superfluous(service: Service, revisions: Sequence[ServiceRevision]) -> list[int]:
    """Numbers of the oldest revisions, beyond those that are kept; the service's own two always are."""
    own = {service.target.number, service.stable.number if service.stable else service.target.number}
    others = sorted((one.number for one in revisions if one.number not in own), reverse=True)
    return others[MAX_REVISIONS:]


def _check(spec: ServiceSpec) -> None:
    scaling = spec.autoscale
    if scaling is None:
        return
    if spec.update.canary > max(1, scaling.min):
        raise errors.Invalid(
            f"{spec.update.canary} canaries are more than the {scaling.min} replicas that autoscaling may "
            "leave",
            field="update.canary",
        )
    match scaling.metric:
        case ScalingMetric.CUSTOM if spec.template.metric is None:
            raise errors.Invalid(
                "scaling by a metric of the copies needs `metric`: its name, port and path", field="metric"
            )
        case ScalingMetric.CPU if not spec.template.resources.cpu:
            raise _no_limit("cpu")
        case ScalingMetric.MEMORY if not spec.template.resources.memory:
            raise _no_limit("memory")


def _no_limit(part: str) -> errors.Invalid:
    return errors.Invalid(
        f"scaling by {part} needs a limit of {part}, of which the target is a percentage",
        field=f"resources.{part}",
    )


def _replicas(service: Service, spec: ServiceSpec) -> int:
    """How many copies follow from a change of the spec."""
    scaling = spec.autoscale
    if scaling is None:
        return spec.replicas
    if spec.replicas != service.replicas and service.autoscale is not None:
        raise _decided_by_autoscaling(service, scaling)
    return min(max(spec.replicas, scaling.min), scaling.max)


def _decided_by_autoscaling(service: Service, scaling: AutoscalePolicy) -> errors.FailedPrecondition:
    return errors.FailedPrecondition(
        f"the replicas of service {service.name} are decided by autoscaling, between {scaling.min} and "
        f"{scaling.max}; change its `min` and `max`, or remove it"
    )


def _last_good(service: Service, revisions: Sequence[ServiceRevision]) -> ServiceRevision:
    if service.stable is not None and service.stable.number != service.target.number:
        return service.stable
    good = [
        one for one in revisions if one.outcome is RevisionOutcome.GOOD and one.number < service.target.number
    ]
    if not good:
        raise errors.FailedPrecondition(
            f"service {service.name} has no good revision before {service.target.number}; "
            f"`skerry service history {service.name}` lists its revisions"
        )
    return max(good, key=lambda one: one.number)


def _stored(service: Service, revisions: Sequence[ServiceRevision], number: int) -> ServiceRevision:
    for one in (service.target, service.stable, *revisions):
        if one is not None and one.number == number:
            return one
    known = ", ".join(str(one.number) for one in revisions)
    raise errors.NotFound(f"service {service.name} has no revision {number}; it has {known}")
