"""Namespaces, quotas and policies as JSON, in and out. Pure; the endpoints use it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict, replace

from skerry.control.namespaces.registry import NamespaceState
from skerry.model import ids
from skerry.model.namespaces import MAX_QUOTA, NO_QUOTA, NamespaceRecord, Quota, QuotaAmounts
from skerry.model.network import Egress
from skerry.model.network_policies import MAX_ALLOWED, OPEN_NAMESPACE, NamespacePolicy

_Limit = Annotated[int, Meta(ge=0, le=MAX_QUOTA)] | None | UnsetType


class QuotaInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of a namespace: cpu in milli-cores, memory in MB, disk in GB. null: unlimited."""

    cpu: _Limit = UNSET
    memory: _Limit = UNSET
    disk: _Limit = UNSET
    instances: _Limit = UNSET
    functions: _Limit = UNSET
    volumes: _Limit = UNSET

    def merge(self, before: Quota) -> Quota:
        """`before`, with the limits that are given."""
        given = {name: limit for name, limit in asdict(self).items() if limit is not UNSET}
        return replace(before, **given)


class NamespaceInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A namespace."""

    name: Annotated[str, Meta(description="Lower-case letters, digits and `-`; begins with a letter")]
    quota: QuotaInput | UnsetType = UNSET

    def first_quota(self) -> Quota:
        return NO_QUOTA if isinstance(self.quota, UnsetType) else self.quota.merge(NO_QUOTA)


class PolicyInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The network policy of a namespace."""

    isolated: (
        Annotated[
            bool,
            Meta(description="Accept connections from nodes, from itself and from `allow_from` only"),
        ]
        | UnsetType
    ) = UNSET
    allow_from: (
        Annotated[
            list[str], Meta(max_length=MAX_ALLOWED, description="Other namespaces that may connect to it")
        ]
        | UnsetType
    ) = UNSET
    egress: (
        Annotated[
            Egress | None,
            Meta(description="What its workloads may reach; null: as the setting `fleet.egress` says"),
        ]
        | UnsetType
    ) = UNSET

    def merge(self, before: NamespacePolicy) -> NamespacePolicy:
        """`before`, with what is given. One that is opened allows all, so it names no others."""
        is_isolated = before.is_isolated if self.isolated is UNSET else self.isolated
        allow_from = before.allow_from if is_isolated else ()
        if not isinstance(self.allow_from, UnsetType):
            allow_from = tuple(sorted(set(map(ids.check_namespace, self.allow_from))))
        egress = before.egress if isinstance(self.egress, UnsetType) else self.egress
        return NamespacePolicy(is_isolated, allow_from, egress)


class NamespaceChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A change of a namespace: what is not given stays, null removes a limit; `quota` null removes all
    limits, `policy` null the whole policy."""

    quota: QuotaInput | UnsetType | None = UNSET
    policy: PolicyInput | UnsetType | None = UNSET

    def merge(self, before: NamespaceRecord) -> NamespaceRecord:
        quota, policy = before.quota, before.policy
        if not isinstance(self.quota, UnsetType):
            quota = NO_QUOTA if self.quota is None else self.quota.merge(quota)
        if not isinstance(self.policy, UnsetType):
            policy = OPEN_NAMESPACE if self.policy is None else self.policy.merge(policy)
        return replace(before, quota=quota, policy=policy)


class QuotaDocument(msgspec.Struct, frozen=True):
    """Limits: cpu in milli-cores, memory in MB, disk in GB. null: unlimited."""

    cpu: int | None
    memory: int | None
    disk: int | None
    instances: int | None
    functions: int | None
    volumes: int | None


class UsageDocument(msgspec.Struct, frozen=True):
    """What is in use: cpu in milli-cores, memory in MB, disk in GB."""

    cpu: int
    memory: int
    disk: int
    instances: int
    functions: int
    volumes: int


class PolicyDocument(msgspec.Struct, frozen=True):
    """The network policy of a namespace."""

    isolated: bool
    allow_from: Annotated[tuple[str, ...], Meta(description="Other namespaces that may connect to it")]
    egress: Annotated[Egress, Meta(description="Of workloads that choose none, and the widest for all")]
    is_default_egress: Annotated[bool, Meta(description="It is that of the setting `fleet.egress`")]


class NamespaceDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace."""

    name: str
    quota: QuotaDocument
    used: UsageDocument
    policy: PolicyDocument
    over: Annotated[dict[str, int], Meta(description="How far it is above its quota, by resource")]
    objects: Annotated[dict[str, int], Meta(description="How many objects of each kind it has")]
    created_at: Annotated[
        float | None, Meta(description="Seconds since the epoch; null: it has no record, and exists by use")
    ]


def namespace_document(state: NamespaceState) -> NamespaceDocument:
    return NamespaceDocument(
        name=state.name,
        quota=QuotaDocument(**_fields(state.quota)),
        used=UsageDocument(**_fields(state.used)),
        policy=PolicyDocument(
            state.policy.is_isolated, state.policy.allow_from, state.egress, state.policy.egress is None
        ),
        over=state.excess,
        objects=dict(sorted(state.objects.items())),
        created_at=state.created_at,
    )


def _fields(amounts: Quota | QuotaAmounts) -> dict[str, int]:
    return asdict(amounts)
