"""Namespaces as objects, and their quotas: how much of each resource a namespace may have.

A namespace exists by being used; a record of it is needed only for a quota or a policy. `QuotaAmounts` are
what instances, functions and volumes of a namespace use together, or what a request would add. What counts,
and how much, is in `skerry.control.namespaces.usage`.
"""

from __future__ import annotations

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import MARKET_NAMESPACE, Namespace
from skerry.model.network_policies import OPEN_NAMESPACE, NamespacePolicy

MAX_QUOTA = 2**53 - 1  # what every reader of JSON can hold

# The resources of a quota and their units, in the order in which they are shown.
UNITS = {
    "cpu": "milli-cores",
    "memory": "MB of memory",
    "disk": "GB of disk",
    "instances": "instances",
    "functions": "functions",
    "volumes": "volumes",
}


class QuotaAmounts(msgspec.Struct, frozen=True, gc=False):
    """An amount of each resource that a quota can limit; a difference of two may be negative."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0
    instances: int = 0
    functions: int = 0
    volumes: int = 0

    def __add__(self, other: QuotaAmounts) -> QuotaAmounts:
        return QuotaAmounts(
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.disk + other.disk,
            self.instances + other.instances,
            self.functions + other.functions,
            self.volumes + other.volumes,
        )

    def __sub__(self, other: QuotaAmounts) -> QuotaAmounts:
        return QuotaAmounts(
            self.cpu - other.cpu,
            self.memory - other.memory,
            self.disk - other.disk,
            self.instances - other.instances,
            self.functions - other.functions,
            self.volumes - other.volumes,
        )

    def __mul__(self, count: int) -> QuotaAmounts:
        return QuotaAmounts(
            self.cpu * count,
            self.memory * count,
            self.disk * count,
            self.instances * count,
            self.functions * count,
            self.volumes * count,
        )

    @property
    def grows(self) -> bool:
        """True if it is more of something."""
        return (
            self.cpu > 0
            or self.memory > 0
            or self.disk > 0
            or self.instances > 0
            or self.functions > 0
            or self.volumes > 0
        )


NOTHING = QuotaAmounts()


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """The most of each resource; None: unlimited."""

    cpu: int | None = None
    memory: int | None = None
    disk: int | None = None
    instances: int | None = None
    functions: int | None = None
    volumes: int | None = None

    def __post_init__(self) -> None:
        for resource, unit in UNITS.items():
            limit = getattr(self, resource)
            if limit is not None and not 0 <= limit <= MAX_QUOTA:
                raise errors.Invalid(
                    f"a quota of {resource} is 0 to {MAX_QUOTA} {unit}; leave it out for no limit",
                    field=f"quota.{resource}",
                )

    def excess(self, used: QuotaAmounts, more: QuotaAmounts = NOTHING) -> dict[str, int]:
        """How much too much `used` and `more` are together, by resource; of resources that `more` does not
        add to, nothing is too much. Without `more`, how far `used` is above the quota."""
        found: dict[str, int] = {}
        for resource in UNITS:
            limit, added = getattr(self, resource), getattr(more, resource)
            if limit is None or (more is not NOTHING and added <= 0):
                continue
            over = getattr(used, resource) + added - limit
            if over > 0:
                found[resource] = over
        return found

    def message(self, namespace: Namespace, used: QuotaAmounts, more: QuotaAmounts) -> str:
        """Why `more` is refused: by how much it is too much; empty if it is not."""
        parts = [
            f"{getattr(used, resource)} of {getattr(self, resource)} {UNITS[resource]} in use; this needs "
            f"{getattr(more, resource)}: {over} too many"
            for resource, over in self.excess(used, more).items()
        ]
        return f"namespace {namespace} has {'; '.join(parts)}" if parts else ""


NO_QUOTA = Quota()


class NamespaceRecord(msgspec.Struct, frozen=True):
    """A namespace as it is stored."""

    name: Namespace
    created_at: float
    quota: Quota = NO_QUOTA
    policy: NamespacePolicy = OPEN_NAMESPACE

    def __post_init__(self) -> None:
        ids.check_namespace(self.name)
        if self.name in self.policy.allow_from:
            raise errors.Invalid(
                "connections within a namespace are always allowed; name others", field="allow_from"
            )
        if self.name == MARKET_NAMESPACE and self.policy != OPEN_NAMESPACE:
            raise errors.Invalid(
                f"{MARKET_NAMESPACE!r} has the cells of sold contracts, whose guests are isolated anyway; it "
                "takes no policy",
                field="policy",
            )
        if self.name == MARKET_NAMESPACE and self.quota != NO_QUOTA:
            raise errors.Invalid(
                f"{MARKET_NAMESPACE!r} has the cells of sold contracts and takes no quota; offer less to "
                "limit what is lent",
                field="quota",
            )
