"""The context of the endpoints of routes, which they get when the application is built."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from skerry.control.routes.registry import RouteRegistry
from skerry.model.routes import Route


class RouteContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    routes: RouteRegistry
    problem_of: Callable[[Route], str] = lambda route: ""  # why a route is not served as it should be
