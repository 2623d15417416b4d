"""Policies of namespaces: whether others may connect to what is in one, and what it may connect to.

A policy is part of the record of a namespace (`skerry.model.namespaces`). A server tells nodes of the
isolated ones by network objects (`IsolatedNamespace`); egress, and whether an instance is isolated, are part
of its order (`skerry.model.orders`).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import InstanceId, Namespace, NodeId
from skerry.model.network import Egress, strictest
from skerry.model.network_objects import NetworkObject

MAX_ALLOWED = 100


class NamespacePolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The policy of one namespace."""

    is_isolated: bool = False
    allow_from: tuple[Namespace, ...] = ()  # other namespaces that may connect to an isolated one
    egress: Egress | None = None  # None: that of the setting `fleet.egress`

    def __post_init__(self) -> None:
        if len(self.allow_from) > MAX_ALLOWED:
            raise errors.Invalid(
                f"a namespace allows connections from at most {MAX_ALLOWED} others", field="allow_from"
            )
        for name in self.allow_from:
            ids.check_namespace(name)
        if len(set(self.allow_from)) != len(self.allow_from):
            raise errors.Invalid("allow_from names a namespace twice", field="allow_from")
        if self.allow_from and not self.is_isolated:
            raise errors.Invalid(
                "every namespace may connect to one that is not isolated; isolate it too, or leave "
                "allow_from out",
                field="allow_from",
            )


OPEN_NAMESPACE = NamespacePolicy()


class IsolatedNamespace(NetworkObject, frozen=True, omit_defaults=True):
    """A namespace that accepts connections from itself and from `allow_from` only."""

    kind: ClassVar[str] = "namespace-policy"
    namespace: Namespace
    allow_from: tuple[Namespace, ...] = ()

    @property
    def key(self) -> str:
        return self.namespace


class JobAddress(NetworkObject, frozen=True, omit_defaults=True):
    """A container of a job, in a namespace that is isolated or that an isolated one allows. Other instances
    have an `InstanceAddress`, or are part of a `ServiceAddress`."""

    kind: ClassVar[str] = "job-address"
    instance: InstanceId
    namespace: Namespace
    node: NodeId
    address: str

    @property
    def key(self) -> str:
        return self.instance


class EgressChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The egress of one workload, as its spec has it."""

    egress: Egress
    is_granted: bool = False  # an admin chose it: it counts also if it is wider than its namespace's

    def within(self, limit: Egress) -> Egress:
        """The egress that it has in a namespace with `limit`."""
        return self.egress if self.is_granted else strictest(limit, self.egress)
