"""The context of the endpoints of routes, which they get when the application is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from skerry.control.routes.registry import RouteRegistry
from skerry.model.routes import Route


@dataclass(frozen=True, slots=True)
class RouteContext:
    """The first argument of these endpoints."""

    routes: RouteRegistry
    problem_of: Callable[[Route], str] = lambda route: ""  # why a route is not served as it should be
