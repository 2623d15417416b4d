"""The context of the endpoints of routes, which they get when the application is built."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.control.routes.registry import RouteRegistry


@dataclass(frozen=True, slots=True)
class RouteContext:
    """The first argument of these endpoints."""

    routes: RouteRegistry
