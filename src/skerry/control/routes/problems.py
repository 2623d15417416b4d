"""Why requests for a route are not answered by its target: a sentence for people, from what is known now."""

from __future__ import annotations

from collections.abc import Callable

from skerry.control.named_table import NamedTable
from skerry.control.nodes.registry import NodeRegistry
from skerry.model.container_options import NodeFeature
from skerry.model.functions import Function
from skerry.model.nodes import Liveness
from skerry.model.routes import NOT_SERVED, Route, TargetKind
from skerry.model.services import Service

_NO_EDGE = (
    "no node serves routes: install HAProxy where `skerry up` runs as root and restart that, or start a node "
    "with --set node.edge=true"
)


class RouteProblems:
    """Finds what is missing for a route."""

    def __init__(
        self,
        services: NamedTable[Service],
        function: Callable[[str], Function | None],
        nodes: NodeRegistry,
    ) -> None:
        """`function` finds one by its key."""
        self._services = services
        self._function = function
        self._nodes = nodes

    def of(self, route: Route) -> str:
        """Empty: nothing is known to be in the way."""
        return self._of_target(route) or self._of_nodes()

    def _of_target(self, route: Route) -> str:
        target = route.spec.target
        if target is None:
            return ""
        if target.kind is TargetKind.SERVICE:
            if self._services.by_name(target.name, route.namespace) is None:
                return f"there is no service {target.name!r} in the namespace {route.namespace!r}"
            return ""
        function = self._function(route.function)
        if function is None:
            return f"there is no function {target.name!r} in the namespace {route.namespace!r}"
        return "" if function.is_web else f"{target.name} is no web function; deploy it with --web"

    def _of_nodes(self) -> str:
        edge = [
            each
            for each in self._nodes.list()
            if NodeFeature.EDGE in each.facts.features and self._nodes.liveness(each.id) is Liveness.LIVE
        ]
        if not edge:
            return _NO_EDGE
        failing = [each for each in edge if any(one.startswith(NOT_SERVED) for one in each.facts.warnings)]
        if not failing:
            return ""
        return (
            f"{len(failing)} of {len(edge)} edge nodes cannot serve routes as they should; "
            "`skerry describe node` tells admins why"
        )
