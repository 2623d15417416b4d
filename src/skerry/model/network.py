"""Network policies: which sources may connect to a container, and what it may connect to.

A policy is given when something is attached to a node's network; `skerry.node.network` turns it into rules
of the firewall. `NamespaceEgress` is the setting `fleet.egress`: which egress the instances of a namespace
have that has none of its own (`skerry.model.network_policies`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import Namespace

ANY_NAMESPACE = "*"


class Ingress(enum.StrEnum):
    """Who may open connections to a container by its address."""

    ALL = "all"  # nodes and every container
    NAMESPACE = "namespace"  # nodes, and containers of its own namespace and of those that it allows
    NODE = "node"  # root on the node, which is the agent


class Egress(enum.StrEnum):
    """What a container may connect to; each value is a part of the one before. Link-local and metadata
    addresses are closed to all of them."""

    ALL = "all"  # whatever the node reaches
    INTERNET = "internet"  # public addresses, and what `mesh` has
    MESH = "mesh"  # containers and services of this cloud, and name servers
    NONE = "none"  # nothing; it answers whoever connects to it

    def exceeds(self, other: Egress) -> bool:
        """True if it reaches more than `other`."""
        return _ORDER.index(self) < _ORDER.index(other)


_ORDER = tuple(Egress)  # from the widest on


def strictest(first: Egress, *others: Egress | None) -> Egress:
    """The one that reaches least; None: not given."""
    return max((first, *(each for each in others if each is not None)), key=_ORDER.index)


class NetworkPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Both directions, and the namespace by which others may admit it."""

    ingress: Ingress = Ingress.ALL
    egress: Egress = Egress.ALL
    namespace: str = ""  # empty: of no namespace, so nothing isolated admits it

    @property
    def shared(self) -> NetworkPolicy:
        """What network namespaces can be prepared with before their owner is known."""
        ingress = Ingress.ALL if self.ingress is Ingress.NAMESPACE else self.ingress
        return NetworkPolicy(ingress, self.egress)


OPEN_POLICY = NetworkPolicy()


class NetworkAccess(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an order, or the author of a container, says of its network; the rest is in its spec."""

    egress: Egress = Egress.ALL
    namespace: str = ""  # empty: of none
    is_isolated: bool = False  # its namespace is

    def policy(self, ingress: Ingress) -> NetworkPolicy:
        """With the ingress of its spec, which counts if it is stricter."""
        if self.is_isolated and ingress is Ingress.ALL:
            ingress = Ingress.NAMESPACE
        return NetworkPolicy(ingress, self.egress, self.namespace)


OPEN_ACCESS = NetworkAccess()


class NamespaceEgress:
    """The egress of each namespace."""

    def __init__(self, rules: Mapping[str, Egress]) -> None:
        self._rules = dict(rules)
        self._default = self._rules.pop(ANY_NAMESPACE, Egress.ALL)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> NamespaceEgress:
        """Each is NAMESPACE=EGRESS, where `*` is every other namespace. Raises `Invalid`."""
        rules: dict[str, Egress] = {}
        for text in texts:
            name, _, value = text.partition("=")
            if value not in list(Egress):
                raise errors.Invalid(
                    f"{text[:80]!r} is no egress of a namespace; write NAMESPACE=EGRESS with one of "
                    f"{', '.join(Egress)}, and {ANY_NAMESPACE} for every other namespace",
                    field="fleet.egress",
                )
            if name != ANY_NAMESPACE:
                ids.check_namespace(name)
            if name in rules:
                raise errors.Invalid(
                    f"namespace {name!r} is named twice; give it one egress", field="fleet.egress"
                )
            rules[name] = Egress(value)
        return cls(rules)

    def of(self, namespace: Namespace) -> Egress:
        return self._rules.get(namespace, self._default)


UNRESTRICTED = NamespaceEgress({})
