"""The context of the endpoints of services, which they get when the application is built."""

from __future__ import annotations

import msgspec

from skerry.control.services.registry import ServiceRegistry


class ServiceContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    services: ServiceRegistry
