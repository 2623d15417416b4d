"""Namespaces and quotas as JSON, in and out. Pure; the endpoints use it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict, replace

from skerry.control.namespaces.registry import NamespaceState
from skerry.model.namespaces import MAX_QUOTA, NO_QUOTA, Quota, QuotaAmounts

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


class NamespaceChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A change of a namespace: limits that are not given stay, null removes one; `quota` null removes all."""

    quota: QuotaInput | None

    def merge(self, before: Quota) -> Quota:
        return NO_QUOTA if self.quota is None else self.quota.merge(before)


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


class NamespaceDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace."""

    name: str
    quota: QuotaDocument
    used: UsageDocument
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
        over=state.excess,
        objects=dict(sorted(state.objects.items())),
        created_at=state.created_at,
    )


def _fields(amounts: Quota | QuotaAmounts) -> dict[str, int]:
    return asdict(amounts)
