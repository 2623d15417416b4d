"""The scope of a caller: the namespaces that it may see and touch.

A token or certificate may be bound to namespaces; a caller without that is unbound and has the scope of the
whole cloud. `skerry.transport.access.namespaces` applies a scope to requests, and lists of the control plane
take one. Whether an object exists outside the scope is never part of an answer: the errors here depend on the
name in the request and on the scope alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, MARKET_NAMESPACE, Namespace

MAX_NAMESPACES = 32  # of one token


class NamespaceScope(msgspec.Struct, frozen=True):
    """`namespaces` is None for the whole cloud; otherwise the first is the default one."""

    namespaces: tuple[Namespace, ...] | None = None

    @property
    def is_bound(self) -> bool:
        return self.namespaces is not None

    @property
    def default(self) -> Namespace:
        """The namespace of a request that names none."""
        if self.namespaces is None:
            return DEFAULT_NAMESPACE
        if not self.namespaces:
            raise errors.Forbidden(
                "this credential is bound to no namespace at all; ask an admin for another"
            )
        return self.namespaces[0]

    def admits(self, namespace: str | None) -> bool:
        """Whether objects of `namespace` may be seen; None is that of objects that have none."""
        return self.namespaces is None or (namespace is not None and namespace in self.namespaces)

    def check(self, namespace: str) -> Namespace:
        """`namespace`, if it is a valid one of this scope; `NotFound` otherwise, whether it exists or not."""
        checked = ids.check_namespace(namespace)
        if not self.admits(checked):
            raise errors.NotFound(
                f"there is no namespace {namespace!r} for this caller, which is bound to "
                f"{' and '.join(self.namespaces or ())}; `skerry status` shows that"
            )
        return checked

    def check_chosen_id(self, id: str, namespace: Namespace) -> None:
        """Raise `Unprocessable` unless a caller of this scope may choose this id in `namespace`.

        Ids are unique in the cloud. One that is taken elsewhere cannot be created, which would tell that it
        is there; so bound callers choose among ids that begin with their namespace.
        """
        if id and self.is_bound and not id.startswith(f"{namespace}."):
            raise errors.Unprocessable(
                f"a caller that is bound to namespaces chooses ids that begin with its namespace and a dot, "
                f"such as {namespace}.{ids.check_id(id)}; or leave the id out, and send an Idempotency-Key"
            )


WHOLE_CLOUD = NamespaceScope()
# The namespaces of a list: one, several, or None for all.
ListedNamespaces = Namespace | NamespaceScope | None


def scope_of(namespaces: ListedNamespaces) -> NamespaceScope:
    """The scope of a list."""
    if isinstance(namespaces, NamespaceScope):
        return namespaces
    return WHOLE_CLOUD if namespaces is None else NamespaceScope((namespaces,))


def check_bound_namespaces(names: Iterable[str]) -> tuple[Namespace, ...] | None:
    """Namespaces to bind a credential to, each once and in their order; None if there are none."""
    found = tuple(dict.fromkeys(ids.check_namespace(name) for name in names))
    if len(found) > MAX_NAMESPACES:
        raise errors.Invalid(
            f"a token or certificate is bound to at most {MAX_NAMESPACES} namespaces", field="namespaces"
        )
    if MARKET_NAMESPACE in found:
        raise errors.Invalid(
            f"the namespace {MARKET_NAMESPACE!r} is for the cells of contracts; nothing is bound to it",
            field="namespaces",
        )
    return found or None
