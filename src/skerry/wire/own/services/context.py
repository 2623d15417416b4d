"""What the endpoints of this room work with, given when the app is built."""

from __future__ import annotations

from dataclasses import dataclass

from skerry.control.services.registry import ServiceRegistry


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """The first argument of every endpoint in this room."""

    services: ServiceRegistry
