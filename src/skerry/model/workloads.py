"""Workloads and instances: the template, and a running copy of it on a node.

A `InstanceSpec` says what to run. A workload names one and counts its versions; an instance holds the spec it
was made with, what is wished of it and what was last seen of it. Instances change only by `wish` and
`become`, which ask the state machine. Both live in a namespace, for ever in the one they were made in; a
namespace is there by being named. Where an instance is placed is decided by `skerry.schedule`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from skerry.model import errors, ids, ports, statuses
from skerry.model.ids import DEFAULT_NAMESPACE, InstanceId, Namespace, NodeId, WorkloadId
from skerry.model.images import ImageAccess, check_path_access, is_path
from skerry.model.ports import PortMapping
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus

MAX_ENVIRONMENT = 100
MAX_CONSTRAINTS = 32
MAX_RESTART_BUDGET = 1_000_000
_MAX_VARIABLE = 32 * 1024
_MAX_URI = 2048


class WorkloadKind(enum.StrEnum):
    """What a workload is made of."""

    CONTAINER = "CONTAINER"
    CELL = "CELL"  # room and nothing in it yet: what a contract of the market lends


class RestartMode(enum.StrEnum):
    """When an instance that ended by itself is started again."""

    NEVER = "never"
    ON_FAILURE = "on-failure"
    ALWAYS = "always"


class RestartPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """When to restart, and with a budget at most how often in a row: a run that lasts begins a new count.

    What is not asked for is not written down either: servers that know no policy without a budget can read
    the records of those that do, while a cloud is being upgraded.
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
    """What a label of the node must be, or must not be; a label that is not there is empty."""

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


class InstanceSpec(msgspec.Struct, frozen=True):
    """What to run: an image, its environment, the room it may use and the ports it is reached by."""

    name: str
    uri: str
    kind: WorkloadKind = WorkloadKind.CONTAINER
    environment: tuple[str, ...] = ()  # KEY=VALUE
    room: Resources = NO_RESOURCES
    ports: tuple[PortMapping, ...] = ()
    restart: RestartPolicy = RestartPolicy()
    arguments: tuple[str, ...] = ()  # instead of the image's command
    architecture: str = ""  # of the node, as registries write it; empty: any
    constraints: tuple[str, ...] = ()  # on the node's labels: `zone=edge`, `disk!=slow`
    userns: UserNamespaceMode = UserNamespaceMode.PRIVATE  # of a container
    granted_access: ImageAccess | None = None  # with `uri`; None: no more than `uri` itself shows

    def __post_init__(self) -> None:
        ids.check_id(self.name, "name")
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

    @property
    def image_access(self) -> ImageAccess:
        """What `uri` may lead to.

        A path without a grant is from a version that recorded none: it took paths from admins only, and ids
        from everybody. `check_granted` keeps new ones out.
        """
        if self.granted_access is not None:
            return self.granted_access
        return ImageAccess.ALL if is_path(self.uri) else ImageAccess.REGISTRIES


def check_granted(spec: InstanceSpec, before: InstanceSpec | None = None) -> None:
    """Raise `Forbidden` if `spec` names a path for which nobody with the authority answers.

    `before` is the spec in whose place it comes: a path that was there stays as it was.
    """
    if spec.granted_access is None and (before is None or spec.uri != before.uri):
        check_path_access(spec.uri, ImageAccess.REGISTRIES)


# Instead of the value of a variable, for those who may not see it.
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
    is_going: bool = False  # deleted: nothing is made from it, and it goes when its instances are told to
    namespace: Namespace = DEFAULT_NAMESPACE  # in which its name is its own
    request_id: str = ""  # of the request that last changed or deleted it

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        ids.check_namespace(self.namespace)


class ObservedState(msgspec.Struct, frozen=True):
    """What was last seen of an instance: the status, since when, why, and by whom it was told."""

    status: InstanceStatus
    since: float
    reason: str = ""
    actor: str = "skerry"
    exit_code: int | None = None
    retry_at: float | None = None  # when its node starts it again; None: it waits for no restart


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
    generation: int = 1  # of the copy: goes up when it leaves a node or has to; nodes refuse older ones
    leaving: InstanceSpec | None = None  # of the copy that its node is to give up, before a new one is placed
    namespace: Namespace = DEFAULT_NAMESPACE  # its workload's, if it has one
    is_adopted: bool = False  # written down from what its node ran, after the store had forgotten it
    request_id: str = ""  # of the request that last changed what is desired; empty: none did

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        ids.check_namespace(self.namespace)

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
        return msgspec.structs.replace(self, observed=observed)

    def wish(self, desired: DesiredStatus) -> Instance:
        """This instance with another wish; one that is over or to be destroyed cannot be called back."""
        if desired is not self.desired and desired is not DesiredStatus.DESTROYED:
            if self.desired is DesiredStatus.DESTROYED:
                raise errors.FailedPrecondition(
                    "it is being destroyed, which cannot be undone; create a new instance"
                )
            if self.observed.status in statuses.TERMINAL:
                raise errors.FailedPrecondition(
                    f"it is {self.observed.status}, which is final; create a new instance"
                )
        return msgspec.structs.replace(self, desired=desired)
