"""The context of the endpoints of services, which they get when the application is built."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.control.services.registry import ServiceRegistry


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The first argument of these endpoints."""

    services: ServiceRegistry
