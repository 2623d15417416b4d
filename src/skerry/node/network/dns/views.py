"""Which names a client may see: the one place that decides it.

A rule gets the namespaces of the client and of a name. A name that is hidden does not exist for the client.
The rule of isolated namespaces (`hide_isolated`) is that of their connections: whoever may not connect sees
no names. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from skerry.model.ids import Namespace

VisibilityRule = Callable[[Namespace | None, Namespace], bool]


def hide_isolated(allow_from: Mapping[Namespace, Collection[Namespace]]) -> VisibilityRule | None:
    """The rule for isolated namespaces, with those that each allows; None: nothing is hidden. The node
    itself, which has no namespace, sees everything."""
    if not allow_from:
        return None

    def sees(client: Namespace | None, namespace: Namespace) -> bool:
        return client in (None, namespace) or client in allow_from.get(namespace, (client,))

    return sees


class NameView:
    """What the clients of one namespace see; None: the node itself."""

    def __init__(self, namespace: Namespace | None, rule: VisibilityRule) -> None:
        self.namespace = namespace
        self._rule = rule

    def sees(self, namespace: Namespace) -> bool:
        return self._rule(self.namespace, namespace)


ALL_NAMES: Final = NameView(None, lambda client, namespace: True)


class NameViews:
    """The view of each client."""

    def __init__(self, namespace_of: Callable[[str], Namespace | None]) -> None:
        """`namespace_of` gives the namespace of the container with an address: empty if it is of none, and
        None for the node itself."""
        self._namespace_of = namespace_of
        self._rule: VisibilityRule | None = None
        self._views: dict[Namespace | None, NameView] = {}

    def use(self, rule: VisibilityRule | None) -> None:
        """Hide names from now on, or again when the answers of the rule change; None: show all."""
        self._rule = rule
        self._views = {}

    def of(self, client: str) -> NameView:
        if self._rule is None:
            return ALL_NAMES
        namespace = self._namespace_of(client)
        if (view := self._views.get(namespace)) is None:
            view = self._views[namespace] = NameView(namespace, self._rule)
        return view
