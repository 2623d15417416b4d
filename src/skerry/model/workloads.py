"""Workloads and instances: the template, and a running copy of it on a node.

An `InstanceSpec` is what to run. A workload names one and counts its versions; an instance holds the spec it
was made with, its desired status and its observed state. Instances change only by `with_desired` and
`with_status`, which check the state machine. Both are in a namespace, which cannot change; a namespace exists
by being used. `skerry.schedule` places instances.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from skerry.model import errors, health_checks, ids, ports, secrets, statuses
from skerry.model.container_options import NO_OPTIONS, ContainerOptions, NodeFeature
from skerry.model.devices import DeviceRequest, check_requests
from skerry.model.health_checks import CheckRole, HealthCheck
from skerry.model.ids import DEFAULT_NAMESPACE, InstanceId, Namespace, NodeId, VolumeId, WorkloadId
from skerry.model.images import ImageAccess, check_path_access, is_path
from skerry.model.mounts import Mount, MountKind, check_mounts
from skerry.model.network import Egress
from skerry.model.network_policies import EgressChoice
from skerry.model.ports import PortMapping
from skerry.model.resources import MAX_AMOUNT, NO_RESOURCES, Millicores, Resources
from skerry.model.secrets import SecretUse
from skerry.model.statuses import DesiredStatus, InstanceStatus

MAX_ENVIRONMENT = 100
MAX_CONSTRAINTS = 32
MAX_RESTART_BUDGET = 1_000_000
MAX_SPREAD = 4
MAX_PER_NODE = 1000
_MAX_VARIABLE = 32 * 1024
_MAX_URI = 2048
_CLOCKS_DIFFER_S = 1.0  # of a node and of the server


class WorkloadKind(enum.StrEnum):
    """What a workload is made of."""

    CONTAINER = "CONTAINER"
    CELL = "CELL"  # a contract cell of the market: resources without a program


class RestartMode(enum.StrEnum):
    """When an instance that ended by itself is started again."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"


class RestartPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """When to restart, and with a budget at most how often in a row: a run that lasts begins a new count.

    Defaults are not stored: older servers, which know no policy without a budget, can read the records while
    a cloud is being upgraded.
    """

    when: RestartMode = RestartMode.ALWAYS
    budget: int | None = None  # None: for ever

    def __post_init__(self) -> None:
        if self.budget is not None and not 0 <= self.budget <= MAX_RESTART_BUDGET:
            raise errors.Invalid(
                f"a restart budget is 0 to {MAX_RESTART_BUDGET}; leave it out to restart for ever",
                field="restart.budget",
            )

    def is_due(self, exit_code: int, restarts: int) -> bool:
        """True if an instance that ended with `exit_code`, after `restarts` restarts, is to start again."""
        return self.is_wanted(exit_code) and (self.budget is None or restarts < self.budget)

    def is_wanted(self, exit_code: int) -> bool:
        """True if it would be started again, were there no budget."""
        return self.when is RestartMode.ALWAYS or (self.when is RestartMode.ON_FAILURE and exit_code != 0)


class Constraint(msgspec.Struct, frozen=True):
    """The value that a label of the node must have, or must not have; a missing label is empty."""

    label: str
    value: str
    is_equal: bool = True

    @classmethod
    def parse(cls, text: str) -> Constraint:
        """`label=value` or `label!=value`."""
        label, equals, value = text.partition("=")
        is_equal = not label.endswith("!")
        label = label.removesuffix("!")
        if not equals:
            raise errors.Invalid(
                f"{text[:40]!r} is no constraint; write `zone=edge` or `disk!=slow`", field="constraints"
            )
        ids.check_id(label, "constraints")
        ids.check_display_text(value, "constraints")
        return cls(label, value, is_equal)

    def holds(self, labels: Mapping[str, str]) -> bool:
        return (labels.get(self.label, "") == self.value) is self.is_equal


class UserNamespaceMode(enum.StrEnum):
    """Who root in a container is."""

    PRIVATE = "private"  # an ordinary user of the node, of a range of ids that no other container has
    HOST = "host"  # the node's root. For admins only


class MetricSource(msgspec.Struct, frozen=True):
    """A number that the program in an instance shows in Prometheus' text format, for autoscaling."""

    name: str  # of the metric; of several series of it, the sum counts
    port: int
    path: str = "/metrics"

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= 200 or not self.name.replace(":", "_").isidentifier():
            raise errors.Invalid(
                f"{self.name[:40]!r} is no name of a metric, such as `http_requests_in_flight`",
                field="metric.name",
            )
        # The rules for port and path are those of a check.
        HealthCheck(CheckRole.READINESS, health_checks.CheckMethod.HTTP, self.port, self.path)


class InstanceSpec(msgspec.Struct, frozen=True):
    """What to run: an image, its environment, its resources and its ports."""

    name: str
    uri: str
    kind: WorkloadKind = WorkloadKind.CONTAINER
    environment: tuple[str, ...] = ()  # KEY=VALUE
    resources: Resources = msgspec.field(default=NO_RESOURCES, name="room")
    ports: tuple[PortMapping, ...] = ()
    restart: RestartPolicy = RestartPolicy()
    arguments: tuple[str, ...] = ()  # instead of the image's command
    architecture: str = ""  # of the node, as registries write it; empty: any
    constraints: tuple[str, ...] = ()  # on the node's labels: `zone=edge`, `disk!=slow`
    userns: UserNamespaceMode = UserNamespaceMode.PRIVATE  # of a container
    granted_access: ImageAccess | None = None  # with `uri`; None: no more than `uri` itself shows
    checks: tuple[HealthCheck, ...] = ()  # run by its node
    spread: tuple[str, ...] = ()  # labels over whose values copies are spread, the first counts most
    max_per_node: int = 0  # copies of one revision on one node; 0: any number
    metric: MetricSource | None = None  # read by its node
    node: str = ""  # the only node that it may be on, by name or id; empty: any
    cpu_limit: Millicores | None = None  # of its quota; None: `resources.cpu`, 0: it has none
    options: ContainerOptions = NO_OPTIONS
    secrets: tuple[SecretUse, ...] = ()  # and configs, of its namespace
    devices: tuple[DeviceRequest, ...] = ()  # each for this instance alone
    mounts: tuple[Mount, ...] = ()
    egress: EgressChoice | None = None  # None: that of its namespace

    def __post_init__(self) -> None:
        ids.check_id(self.name, "name")
        check_requests(self.devices)
        if len(self.arguments) > MAX_ENVIRONMENT or any("\0" in word for word in self.arguments):
            raise errors.Invalid(
                f"arguments must be at most {MAX_ENVIRONMENT} words without NUL bytes", field="arguments"
            )
        ids.check_display_text(self.architecture, "architecture")
        if len(self.constraints) > MAX_CONSTRAINTS:
            raise errors.Invalid(f"at most {MAX_CONSTRAINTS} constraints", field="constraints")
        for text in self.constraints:
            Constraint.parse(text)
        if not 0 < len(self.uri) <= _MAX_URI or not self.uri.isprintable() or " " in self.uri:
            raise errors.Invalid(
                f"uri must name an image, such as `example.org/web:1.2`, in at most {_MAX_URI} characters",
                field="uri",
            )
        check_environment(self.environment)
        ports.check_all(self.ports)
        health_checks.check_all(self.checks, tuple(mapping.destination for mapping in self.ports))
        if len(self.spread) > MAX_SPREAD:
            raise errors.Invalid(f"copies are spread over at most {MAX_SPREAD} labels", field="spread")
        for label in self.spread:
            ids.check_id(label, "spread")
        if not 0 <= self.max_per_node <= MAX_PER_NODE:
            raise errors.Invalid(
                f"max_per_node is 0 (any number) to {MAX_PER_NODE}, not {self.max_per_node}",
                field="max_per_node",
            )
        ids.check_display_text(self.node, "node")
        secrets.check_uses(self.secrets, self.environment)
        if self.mounts:
            check_mounts(self.mounts, [use.path for use in self.secrets])
        self._check_cpu_limit()

    def _check_cpu_limit(self) -> None:
        limit, cpu = self.cpu_limit, self.resources.cpu
        if limit is None or limit == 0:
            return
        if not 0 < limit <= MAX_AMOUNT:
            raise errors.Invalid(f"cpu_limit is 0 (none) to {MAX_AMOUNT} milli-cores", field="cpu_limit")
        if limit < cpu:
            raise errors.Invalid(
                f"cpu_limit ({limit}) is below cpu ({cpu}), which is guaranteed; raise it, or lower cpu",
                field="cpu_limit",
            )

    @property
    def needed_features(self) -> tuple[str, ...]:
        """The `NodeFeature`s that a node must have to run it."""
        needs = []
        if self.options != NO_OPTIONS or self.cpu_limit is not None:
            needs.append(NodeFeature.OPTIONS)
        if self.options.init:
            needs.append(NodeFeature.INIT)
        if self.secrets:
            needs.append(NodeFeature.SECRETS)
        if self.devices:
            needs.append(NodeFeature.DEVICES)
        if self.mounts:
            needs.append(NodeFeature.VOLUMES)
        if self.egress is not None and Egress.INTERNET.exceeds(self.egress.egress):
            needs.append(NodeFeature.POLICIES)
        return tuple(needs)

    @property
    def volume_names(self) -> tuple[str, ...]:
        """The volumes that it uses, in the order of its mounts."""
        return tuple(mount.source for mount in self.mounts if mount.is_volume)

    @property
    def has_volume_templates(self) -> bool:
        return any(mount.kind is MountKind.TEMPLATE for mount in self.mounts)

    def with_volumes(self, volumes: tuple[VolumeId, ...]) -> InstanceSpec:
        """The same with the volumes that its mounts are, as nodes get it."""
        if not volumes:
            return self
        remaining = iter(volumes)
        mounts = tuple(
            msgspec.structs.replace(mount, volume=next(remaining, VolumeId(""))) if mount.is_volume else mount
            for mount in self.mounts
        )
        return msgspec.structs.replace(self, mounts=mounts)

    @property
    def decides_readiness(self) -> bool:
        """True if a check decides whether it is ready; else it is while it runs."""
        return any(check.role is not CheckRole.LIVENESS for check in self.checks)

    @property
    def image_access(self) -> ImageAccess:
        """The access of `uri`.

        A path without a grant is from a version that recorded none: it took paths from admins only, and ids
        from all. `check_granted` refuses new ones.
        """
        if self.granted_access is not None:
            return self.granted_access
        return ImageAccess.ALL if is_path(self.uri) else ImageAccess.REGISTRIES


def check_granted(spec: InstanceSpec, before: InstanceSpec | None = None) -> None:
    """Raise `Forbidden` if `spec` names a path without a grant.

    `before` is the spec that it replaces: an image path that was in it is accepted.
    """
    if any(mount.kind is MountKind.HOST and not mount.is_granted for mount in spec.mounts):
        raise errors.Forbidden(
            "only an admin may mount a path of a node in a container; use a volume, or ask an admin"
        )
    if spec.granted_access is None and (before is None or spec.uri != before.uri):
        check_path_access(spec.uri, ImageAccess.REGISTRIES)


def check_no_templates(spec: InstanceSpec) -> None:
    """Raise if `spec` has a volume template, which only a service can have."""
    if spec.has_volume_templates:
        raise errors.Invalid(
            "volume templates are for the copies of a service; use a volume instead", field="volume_templates"
        )


# In place of the value of a variable, for callers that may not see it.
HIDDEN = "<hidden>"


def check_environment(environment: tuple[str, ...]) -> None:
    """Raise unless each is `KEY=VALUE`, no key comes twice, and there are not too many."""
    if len(environment) > MAX_ENVIRONMENT:
        raise errors.Invalid(
            f"{len(environment)} variables are too many; at most {MAX_ENVIRONMENT}", field="environment"
        )
    seen: set[str] = set()
    for position, variable in enumerate(environment):
        key, equals, value = variable.partition("=")
        # Values may be secrets: the message names the place, and the key at most.
        if not (key and equals) or "\0" in variable or not key.isprintable():
            raise errors.Invalid(f"environment[{position}] must read KEY=VALUE", field="environment")
        if len(variable) > _MAX_VARIABLE:
            raise errors.Invalid(
                f"environment[{position}] is longer than {_MAX_VARIABLE} characters", field="environment"
            )
        if value == HIDDEN:
            raise errors.Invalid(
                f"environment[{position}] holds what is shown instead of a value; give the value itself",
                field="environment",
            )
        if key in seen:
            raise errors.Invalid(f"environment sets {key[:100]!r} twice", field="environment")
        seen.add(key)


class RolloutStrategy(enum.StrEnum):
    """What a new version of a workload means for the instances of older ones."""

    NONE = "none"  # they stay as they are
    ROLLING = "rolling"  # each is replaced, when the one before it runs


class Workload(msgspec.Struct, frozen=True):
    """A template that instances are made from."""

    id: WorkloadId
    spec: InstanceSpec
    created_at: float
    version: int = 1  # goes up with every change of the spec
    rollout: RolloutStrategy = RolloutStrategy.NONE  # of this version
    # A deleted workload gets no instances, and its record is removed when all its instances are to be
    # destroyed.
    is_deleting: bool = msgspec.field(default=False, name="is_going")
    namespace: Namespace = DEFAULT_NAMESPACE  # in which its name is its own
    request_id: str = ""  # of the request that last changed or deleted it

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        ids.check_namespace(self.namespace)


class ObservedState(msgspec.Struct, frozen=True):
    """The last observed state of an instance: the status, since when, why, and who reported it."""

    status: InstanceStatus
    since: float
    reason: str = ""
    actor: str = "skerry"
    exit_code: int | None = None
    retry_at: float | None = None  # when its node starts it again; None: it waits for no restart
    has_passed: bool = True  # its checks, while it runs; without checks always
    checked_at: float = 0.0  # when that last changed
    check_message: str = ""  # why it has not passed
    previous_exit_code: int | None = None  # of the run before the last one, if it is known


class OwnerKind(enum.StrEnum):
    """What makes instances of its own."""

    SERVICE = "service"
    JOB = "job"


class InstanceOwner(msgspec.Struct, frozen=True):
    """What an instance was made by, and which of its instances it is."""

    kind: OwnerKind
    id: str
    name: str
    revision: int = 1  # of a service
    index: int = 0  # of a service: its place among the copies; of a job: which completion it is for
    attempt: int = 0  # how many tries in a row failed before it

    @property
    def group(self) -> str:
        """Names the copies that are spread over nodes: those of one revision."""
        return f"{self.kind}/{self.id}@{self.revision}"


class Instance(msgspec.Struct, frozen=True):
    """A copy of a workload that runs, is to run, or ran."""

    id: InstanceId
    spec: InstanceSpec
    created_at: float
    observed: ObservedState
    desired: DesiredStatus = DesiredStatus.RUNNING
    workload: WorkloadId | None = None  # None: made from a spec of its own
    version: int = 0  # of the workload, whose spec this has
    node: NodeId | None = None
    ip: str = ""
    restarts: int = 0
    generation: int = 1  # of the copy: goes up when it leaves a node or must; nodes refuse older ones
    leaving: InstanceSpec | None = None  # of the copy that its node is to give up, before a new one is placed
    namespace: Namespace = DEFAULT_NAMESPACE  # its workload's, if it has one
    is_adopted: bool = False  # recovered from its node, after a restore of the store
    request_id: str = ""  # of the request that last changed what is desired; empty: none did
    owner: InstanceOwner | None = None  # None: a user created it, or it is of a workload
    retiring_at: float | None = None  # since when it is out of service, to be destroyed soon
    is_released: bool = False  # it has stopped and is not started again: others may have its resources
    devices: tuple[str, ...] = ()  # of its node, that were assigned to it with the node, by their full names
    volumes: tuple[VolumeId, ...] = ()  # that it was bound with, one for each mount of a volume in its spec
    ip6: str = ""

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        ids.check_namespace(self.namespace)

    @property
    def is_ready(self) -> bool:
        """True if it runs, is in service and has passed its checks."""
        return (
            self.observed.status is InstanceStatus.RUNNING
            and self.observed.has_passed
            and self.desired is DesiredStatus.RUNNING
            and self.leaving is None
            and self.retiring_at is None
        )

    @property
    def ready_since(self) -> float:
        """Since when it is ready, if it is."""
        return max(self.observed.since, self.observed.checked_at)

    @property
    def reserved_spec(self) -> InstanceSpec:
        """What its node sets aside for it. What was stopped for good needs neither processors nor memory, nor
        devices."""
        spec = self.leaving or self.spec
        if not self.is_released:
            return spec
        return msgspec.structs.replace(spec, resources=Resources(disk=spec.resources.disk), devices=())

    @property
    def reserved_devices(self) -> tuple[str, ...]:
        """The devices that its node keeps for it."""
        return () if self.is_released else self.devices

    def status_since(self, now: float) -> float:
        """When its status began, by the clock of its node as far as that can be right: the time at which the
        instance was created if it began before that, or after `now`."""
        since = self.observed.since
        return since if self.created_at <= since <= now + _CLOCKS_DIFFER_S else self.created_at

    def become(
        self,
        status: InstanceStatus,
        *,
        at: float,
        reason: str,
        actor: str,
        exit_code: int | None = None,
        retry_at: float | None = None,
    ) -> Instance:
        """This instance, seen to be `status`; raises `FailedPrecondition` if the state machine forbids it.

        A repeat keeps the time at which the status began and takes the new reason.
        """
        statuses.check(self.observed.status, status)
        since = self.observed.since if status is self.observed.status else at
        observed = ObservedState(status, since, reason, actor, exit_code, retry_at)
        if status is InstanceStatus.RUNNING and self.observed.status is status:
            seen = self.observed
            observed = msgspec.structs.replace(
                observed,
                has_passed=seen.has_passed,
                checked_at=seen.checked_at,
                check_message=seen.check_message,
            )
        elif self.spec.decides_readiness:  # until its node reports it
            observed = msgspec.structs.replace(observed, has_passed=False)
        return msgspec.structs.replace(self, observed=observed)

    def with_desired(self, desired: DesiredStatus) -> Instance:
        """This instance with another desired status; `FailedPrecondition` if it is over or being
        destroyed."""
        if desired is not self.desired and desired is not DesiredStatus.DESTROYED:
            if self.desired is DesiredStatus.DESTROYED:
                raise errors.FailedPrecondition(
                    "it is being destroyed, which cannot be undone; create a new instance"
                )
            if self.observed.status in statuses.TERMINAL:
                raise errors.FailedPrecondition(
                    f"it is {self.observed.status}, which is final; create a new instance"
                )
            if desired is DesiredStatus.RUNNING and self.retiring_at is not None:
                raise errors.FailedPrecondition(
                    "it is out of service and about to be destroyed; create a new instance"
                )
        return msgspec.structs.replace(self, desired=desired)
