"""Services: so many copies of a template, kept ready, and replaced safely when the template changes.

A service makes instances; each has the service as its `owner`, with the revision it was made from and its
index among the copies. A `ServiceRevision` is one state of the template; the service itself holds
the one it is going to (`target`) and the last that was good (`stable`); the rest is its history.
"""

from __future__ import annotations

import enum
import math
import re

import msgspec

from skerry.model import errors, ids, service_ports
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, ServiceId
from skerry.model.mounts import MountKind
from skerry.model.network_objects import ServicePort
from skerry.model.workloads import InstanceSpec, WorkloadKind

MAX_REPLICAS = 10_000
MAX_REVISIONS = 10  # kept
MAX_NAME = 50  # the names of its copies are longer
_NAME = re.compile(ids.NAMESPACE_PATTERN)
_PERCENT = re.compile(r"(\d{1,3})%")
_MAX_SECONDS = 7 * 86_400.0

CountOrPercent = int | str  # `2`, or `25%` of the replicas


def resolve_count(count: CountOrPercent, replicas: int, *, round_up: bool) -> int:
    """`count` as a number of copies."""
    if isinstance(count, int):
        return count
    share = int(count.removesuffix("%")) * replicas
    return -(-share // 100) if round_up else share // 100


def _check_count(count: CountOrPercent, field: str) -> None:
    if isinstance(count, int):
        if 0 <= count <= MAX_REPLICAS:
            return
    elif (form := _PERCENT.fullmatch(count)) and int(form[1]) <= 100:
        return
    raise errors.Invalid(f"{field} is a number of copies, or `0%` to `100%` of the replicas", field=field)


def _is_zero(count: CountOrPercent) -> bool:
    return count in (0, "0%", "00%", "000%")


def _check_seconds(seconds: float, field: str, *, at_least: float = 0.0) -> None:
    if not (math.isfinite(seconds) and at_least <= seconds <= _MAX_SECONDS):
        raise errors.Invalid(f"{field} is {at_least:g} to {_MAX_SECONDS:g} seconds", field=field)


class UpdateOrder(enum.StrEnum):
    """Which comes first when a copy is replaced."""

    AUTO = "auto"  # start-first, unless published ports or volumes force stop-first
    START_FIRST = "start-first"
    STOP_FIRST = "stop-first"


class UpdateFailureAction(enum.StrEnum):
    """What follows an update that fails."""

    REVERT = "revert"  # back to the last good revision
    PAUSE = "pause"  # it stays as it is until a user decides


class UpdatePolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How copies follow a new revision."""

    order: UpdateOrder = UpdateOrder.AUTO
    max_surge: CountOrPercent = 1  # copies beyond the replicas, at most
    max_unavailable: CountOrPercent = 0  # ready copies missing to the replicas, at most
    min_ready_s: float = 3.0  # a copy counts as good when it has been ready for so long
    drain_s: float = 5.0  # between out of service and the stop of a copy
    deadline_s: float = 600.0  # without progress for so long, the update has failed
    max_failures: int = 3  # restarts of a new copy after which the update has failed
    canary: int = 0  # copies that try a revision before the others follow; 0: none
    promote_after_s: float | None = None  # with good canaries; None: a user promotes
    on_failure: UpdateFailureAction = UpdateFailureAction.REVERT

    def __post_init__(self) -> None:
        _check_count(self.max_surge, "update.max_surge")
        _check_count(self.max_unavailable, "update.max_unavailable")
        if _is_zero(self.max_surge) and _is_zero(self.max_unavailable):
            raise errors.Invalid(
                "max_surge and max_unavailable cannot both be 0: no copy could ever be replaced",
                field="update.max_surge",
            )
        if self.order is UpdateOrder.START_FIRST and _is_zero(self.max_surge):
            raise errors.Invalid(
                "start-first needs a max_surge of at least 1; or choose stop-first", field="update.max_surge"
            )
        if self.order is UpdateOrder.STOP_FIRST and _is_zero(self.max_unavailable):
            raise errors.Invalid(
                "stop-first needs a max_unavailable of at least 1; or choose start-first",
                field="update.max_unavailable",
            )
        times = {"min_ready_s": self.min_ready_s, "drain_s": self.drain_s, "deadline_s": self.deadline_s}
        for name, seconds in times.items():
            _check_seconds(seconds, f"update.{name}", at_least=1.0 if name == "deadline_s" else 0.0)
        if self.promote_after_s is not None:
            _check_seconds(self.promote_after_s, "update.promote_after_s")
        if self.min_ready_s >= self.deadline_s:
            raise errors.Invalid(
                "min_ready_s must be below deadline_s: no copy could become good in time",
                field="update.min_ready_s",
            )
        if not 1 <= self.max_failures <= 1000:
            raise errors.Invalid("max_failures is 1 to 1000", field="update.max_failures")
        if not 0 <= self.canary <= MAX_REPLICAS:
            raise errors.Invalid(f"canary is 0 to {MAX_REPLICAS}", field="update.canary")

    def bounds(self, replicas: int, template: InstanceSpec) -> UpdateBounds:
        """What this means for so many copies of `template`."""
        surge = resolve_count(self.max_surge, replicas, round_up=True)
        unavailable = resolve_count(self.max_unavailable, replicas, round_up=False)
        if self.order is UpdateOrder.STOP_FIRST:
            return UpdateBounds(surge, max(1, unavailable), is_stop_first=True, reason="as asked for")
        if self.order is UpdateOrder.AUTO and template.ports:
            ports = ", ".join(str(mapping.source) for mapping in template.ports)
            reason = f"two copies on one node cannot both publish port {ports}"
            return UpdateBounds(surge, max(1, unavailable), is_stop_first=True, reason=reason)
        if self.order is UpdateOrder.AUTO and (volume := _written_volume(template)):
            reason = f"two copies cannot write to {volume} at once"
            return UpdateBounds(surge, max(1, unavailable), is_stop_first=True, reason=reason)
        if surge == 0:
            return UpdateBounds(surge, max(1, unavailable), is_stop_first=True, reason="max_surge is 0")
        return UpdateBounds(surge, unavailable, is_stop_first=False, reason="")


def _written_volume(template: InstanceSpec) -> str:
    """A volume, or template of volumes, that copies write to; empty: there is none."""
    for mount in template.mounts:
        if mount.kind is MountKind.TEMPLATE:
            return f"a volume of template {mount.source}"
        if mount.is_volume and not mount.read_only:
            return f"volume {mount.source}"
    return ""


class UpdateBounds(msgspec.Struct, frozen=True):
    """An update policy in numbers of copies."""

    surge: int
    unavailable: int
    is_stop_first: bool
    reason: str  # why it is stop-first


class DisruptionBudget(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many copies may be out of service because nodes are drained. Replacements always start first."""

    max_unavailable: CountOrPercent = 0

    def __post_init__(self) -> None:
        _check_count(self.max_unavailable, "budget.max_unavailable")

    def resolve(self, replicas: int) -> int:
        """How many that is of so many copies."""
        return resolve_count(self.max_unavailable, replicas, round_up=False)


class ScalingMetric(enum.StrEnum):
    """The metric of autoscaling."""

    CPU = "cpu"  # percent of what the copies may use
    MEMORY = "memory"  # the same
    CUSTOM = "custom"  # a metric that the copies themselves show, `InstanceSpec.metric`
    REQUESTS = "requests"  # under way by routes; only this one reaches 0 copies, and begins again


class AutoscalePolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Between which numbers of copies, and by what, a service is scaled."""

    min: int
    max: int
    metric: ScalingMetric = ScalingMetric.CPU
    target: float = 70.0  # of the mean over the ready copies
    up_after_s: float = 15.0  # so long must more copies be called for
    down_after_s: float = 300.0  # and so long fewer
    idle_s: float = 300.0  # without a request for so long, the last copy goes, if `min` is 0

    def __post_init__(self) -> None:
        if not (0 <= self.min <= self.max <= MAX_REPLICAS and self.max):
            raise errors.Invalid(
                f"autoscaling is between min and max replicas, 1 to {MAX_REPLICAS}: not {self.min} and "
                f"{self.max}",
                field="autoscale.min",
            )
        if not self.min and self.metric is not ScalingMetric.REQUESTS:
            raise errors.Invalid(
                f"without copies {self.metric} cannot be measured: `min` is at least 1, or the metric "
                "`requests`",
                field="autoscale.min",
            )
        if not (math.isfinite(self.target) and self.target > 0):
            raise errors.Invalid("the target of autoscaling is above 0", field="autoscale.target")
        _check_seconds(self.up_after_s, "autoscale.up_after_s")
        _check_seconds(self.down_after_s, "autoscale.down_after_s")
        _check_seconds(self.idle_s, "autoscale.idle_s", at_least=1.0)


class RevisionOutcome(enum.StrEnum):
    """The outcome of a revision."""

    PENDING = "pending"  # not decided
    GOOD = "good"  # all copies ran it and were ready
    FAILED = "failed"


class ServiceRevision(msgspec.Struct, frozen=True):
    """One state of a service's template."""

    number: int
    template: InstanceSpec
    created_at: float
    actor: str = "skerry"
    outcome: RevisionOutcome = RevisionOutcome.PENDING


class ServiceRollout(msgspec.Struct, frozen=True, omit_defaults=True):
    """An update that is under way, to the service's `target`."""

    started_at: float
    progress_at: float  # when there last was another good copy, or a user resumed or promoted it
    good: int = 0  # copies of the target that were good then
    is_canary: bool = False  # only the canaries follow, until it is promoted
    canaries_good_at: float | None = None
    is_revert: bool = False
    is_halted: bool = False  # it failed, and waits for a user to decide
    reason: str = ""  # why it reverts, or was halted


class ServiceStatus(enum.StrEnum):
    """The status of a service."""

    STARTING = "STARTING"  # its first copies are not all ready yet
    HEALTHY = "HEALTHY"
    DEGRADED = "DEGRADED"  # fewer ready copies than replicas, without an update
    UPDATING = "UPDATING"
    CANARY = "CANARY"  # its canaries are tried, or wait for a user to promote them
    REVERTING = "REVERTING"
    PAUSED = "PAUSED"
    FAILED = "FAILED"  # an update failed and waits for a user to decide
    DELETING = "DELETING"


class Service(msgspec.Struct, frozen=True):
    """A service as it is stored; its name is its own in its namespace."""

    id: ServiceId
    name: str
    target: ServiceRevision
    created_at: float
    replicas: int = 1
    namespace: Namespace = DEFAULT_NAMESPACE
    update: UpdatePolicy = UpdatePolicy()
    budget: DisruptionBudget = DisruptionBudget()
    autoscale: AutoscalePolicy | None = None
    stable: ServiceRevision | None = None  # the last that was good; None: none was yet
    latest: int = 1  # the highest number of a revision that was ever given
    rollout: ServiceRollout | None = None
    is_paused: bool = False
    is_deleting: bool = False
    request_id: str = ""  # of the request that last changed it
    quota_message: str = ""  # why a copy that is missing is not created: the quota of its namespace
    address: str = ""  # virtual, its own until it is removed; empty: it has none yet
    ports: tuple[ServicePort, ...] = ()  # of the address; without any, all are forwarded as they are
    affinity_s: int = 0  # a client keeps its copy for so long; 0: every connection is balanced

    def __post_init__(self) -> None:
        check_service_name(self.name)
        ids.check_namespace(self.namespace)
        service_ports.check_all(self.ports)
        service_ports.check_affinity(self.affinity_s)
        if not 0 <= self.replicas <= MAX_REPLICAS:
            raise errors.Invalid(f"replicas are 0 to {MAX_REPLICAS}, not {self.replicas}", field="replicas")
        if self.update.canary > max(self.replicas, 1):
            raise errors.Invalid(
                f"{self.update.canary} canaries are more than the {self.replicas} replicas",
                field="update.canary",
            )
        if self.target.template.kind is not WorkloadKind.CONTAINER:
            raise errors.Invalid("a service is made of containers", field="type")
        if self.update.order is UpdateOrder.START_FIRST and self.target.template.has_volume_templates:
            raise errors.Invalid(
                "a copy with a volume of its own cannot start before the one that it replaces has stopped; "
                "choose stop-first, or leave the order out",
                field="update.order",
            )

    @property
    def has_own_data(self) -> bool:
        """True if a copy writes to volumes, so that it must be gone before another takes its place."""
        return bool(_written_volume(self.target.template))

    @property
    def bounds(self) -> UpdateBounds:
        return self.update.bounds(self.replicas, self.target.template)

    def status(self, ready: int) -> ServiceStatus:
        """What it is with so many ready copies."""
        rollout = self.rollout
        if self.is_deleting:
            return ServiceStatus.DELETING
        if rollout is None:
            return ServiceStatus.HEALTHY if ready >= self.replicas else ServiceStatus.DEGRADED
        if rollout.is_halted:
            return ServiceStatus.FAILED
        if self.is_paused:
            return ServiceStatus.PAUSED
        if rollout.is_revert:
            return ServiceStatus.REVERTING
        if rollout.is_canary:
            return ServiceStatus.CANARY
        return ServiceStatus.STARTING if self.stable is None else ServiceStatus.UPDATING


def check_service_name(text: str, noun: str = "service") -> str:
    """A name that is valid in a host name, also with an index appended."""
    if len(text) > MAX_NAME or not _NAME.fullmatch(text):
        raise errors.Invalid(
            f"{noun} name {text[:MAX_NAME]!r} must be 1 to {MAX_NAME} lower-case letters, digits or '-', and "
            "begin with a letter and end with a letter or digit",
            field="name",
        )
    return text
