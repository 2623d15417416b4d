"""Network policies: which sources may connect to a container, and what it may connect to.

A policy is given when something is attached to a node's network; `skerry.node.network` turns it into rules
of the firewall. `NamespaceEgress` is the setting `fleet.egress`: which egress the instances of a namespace
have.
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

    ALL = "all"  # the node and every container on it
    NODE = "node"  # root on the node, which is the agent


class Egress(enum.StrEnum):
    """What a container may connect to. Link-local and metadata addresses are closed to all of them."""

    ALL = "all"  # whatever the node reaches
    INTERNET = "internet"  # public addresses, containers of the same node and their published ports


class NetworkPolicy(msgspec.Struct, frozen=True):
    """Both directions."""

    ingress: Ingress = Ingress.ALL
    egress: Egress = Egress.ALL


OPEN_POLICY = NetworkPolicy()


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
                    f"{text[:80]!r} is no egress of a namespace; write NAMESPACE={Egress.INTERNET} or "
                    f"NAMESPACE={Egress.ALL}, with {ANY_NAMESPACE} for every other namespace",
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
