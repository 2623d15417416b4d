"""Services as JSON input: a merge patch (RFC 7396) of the present service, or of the defaults for a new one.

Fields that are not given stay, null resets one to its default. Pure: `skerry.control.services.requests` and
the model refuse invalid values.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from skerry.control.services.requests import ServiceSpec
from skerry.model import errors, service_ports
from skerry.model.callers import Caller
from skerry.model.network_objects import ServicePort
from skerry.model.service_ports import MAX_AFFINITY_S
from skerry.model.services import (
    MAX_REPLICAS,
    AutoscalePolicy,
    CountOrPercent,
    DisruptionBudget,
    ScalingMetric,
    UpdateFailureAction,
    UpdateOrder,
    UpdatePolicy,
    check_service_name,
)
from skerry.wire.option_documents import OptionalField
from skerry.wire.spec_documents import ImageSpecInput, merge_field

T = TypeVar("T", bound=msgspec.Struct)
_REQUESTS_PER_COPY = 10.0  # the target, if none is given

Count = Annotated[CountOrPercent, Meta(description="A number of copies, or `25%` of the replicas")]


class UpdateInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How copies follow a new revision; times are seconds."""

    order: OptionalField[UpdateOrder] = UNSET
    max_surge: OptionalField[Count] = UNSET
    max_unavailable: OptionalField[Count] = UNSET
    min_ready_s: OptionalField[float] = UNSET
    drain_s: OptionalField[float] = UNSET
    deadline_s: OptionalField[float] = UNSET
    max_failures: OptionalField[int] = UNSET
    canary: OptionalField[int] = UNSET
    promote_after_s: OptionalField[float] = UNSET
    on_failure: OptionalField[UpdateFailureAction] = UNSET


class BudgetInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many copies may be out of service because nodes are drained."""

    max_unavailable: OptionalField[Count] = UNSET


class AutoscaleInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Autoscaling: the range of replicas, and the metric; `min` and `max` are required."""

    min: OptionalField[int] = UNSET
    max: OptionalField[int] = UNSET
    metric: OptionalField[ScalingMetric] = UNSET
    target: OptionalField[float] = UNSET
    up_after_s: OptionalField[float] = UNSET
    down_after_s: OptionalField[float] = UNSET
    idle_s: OptionalField[
        Annotated[float, Meta(description="With `min` 0: the last copy goes after so long without requests")]
    ] = UNSET


class ServiceInput(ImageSpecInput, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A service: the spec of a workload, the number of copies, and how they are updated."""

    kind: Annotated[Literal["service"], Meta(description="For clients that write it")] | UnsetType = UNSET
    namespace: (
        Annotated[
            str,
            Meta(description="Namespace in which it is created, unless the path names it; it cannot change"),
        ]
        | UnsetType
    ) = UNSET
    replicas: OptionalField[Annotated[int, Meta(description=f"0 to {MAX_REPLICAS}")]] = UNSET
    update: OptionalField[UpdateInput] = UNSET
    budget: OptionalField[BudgetInput] = UNSET
    autoscale: OptionalField[AutoscaleInput] = UNSET
    service_ports: OptionalField[
        Annotated[
            list[str],
            Meta(
                description="Ports of the virtual address, as PORT[:TARGET][/tcp|udp][=NAME]; none: all ports"
            ),
        ]
    ] = UNSET
    affinity_s: OptionalField[
        Annotated[
            int,
            Meta(description=f"A client keeps its copy for so long, 0 (never) to {MAX_AFFINITY_S} seconds"),
        ]
    ] = UNSET

    def service_spec(self, caller: Caller, base: ServiceSpec | None = None) -> ServiceSpec:
        """`base` with this input of `caller` applied."""
        if isinstance(self.name, str):
            check_service_name(self.name)
        template = base.template if base else None
        autoscale = _autoscale(self.autoscale, base.autoscale if base else None)
        least = 1 if autoscale is None else autoscale.min
        replicas = (base.replicas if base else least) if self.replicas is UNSET else self.replicas
        return ServiceSpec(
            self.with_uri(template).spec_from(caller, template),
            least if replicas is None else replicas,
            _merge(self.update, base.update if base else UpdatePolicy(), UpdatePolicy()),
            _merge(self.budget, base.budget if base else DisruptionBudget(), DisruptionBudget()),
            autoscale,
            _ports(self.service_ports, base.ports if base else ()),
            merge_field(self.affinity_s, base.affinity_s if base else 0, 0),
        )


class ScaleRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new number of copies."""

    replicas: Annotated[int, Meta(description=f"0 to {MAX_REPLICAS}")]


class RollbackRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The revision to roll back to."""

    revision: Annotated[int | None, Meta(description="Without it: the last good one before the present")] = (
        None
    )


def _ports(given: OptionalField[list[str]], base: tuple[ServicePort, ...]) -> tuple[ServicePort, ...]:
    if given is UNSET:
        return base
    return tuple(map(service_ports.parse, given or ()))


def _autoscale(given: OptionalField[AutoscaleInput], base: AutoscalePolicy | None) -> AutoscalePolicy | None:
    if not isinstance(given, AutoscaleInput):
        return base if given is UNSET else None
    if base is not None:
        return _merge(given, base, base)
    fields = _given(given)
    if fields.get("min") is None or fields.get("max") is None:
        raise errors.Invalid("autoscaling needs `min` and `max` replicas", field="autoscale.min")
    if fields.get("metric") is ScalingMetric.REQUESTS and fields.get("target") is None:
        fields["target"] = _REQUESTS_PER_COPY
    return AutoscalePolicy(**{name: value for name, value in fields.items() if value is not None})


def _merge(given: msgspec.Struct | UnsetType | None, base: T, default: T) -> T:
    """`base` with the given fields; null is the field's default."""
    if given is UNSET:
        return base
    if given is None:
        return default
    defaults = {field.name: field.default for field in msgspec.structs.fields(base)}
    changed = {name: defaults[name] if value is None else value for name, value in _given(given).items()}
    if msgspec.NODEFAULT in changed.values():
        raise errors.Invalid("`min` and `max` of autoscaling cannot be null", field="autoscale.min")
    return replace(base, **changed)


def _given(given: Any) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(given).items() if value is not UNSET}
