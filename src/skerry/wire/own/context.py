"""What our own endpoints work with: the control plane, and what they share among requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from skerry.control.plane import Plane
from skerry.wire.own.limits import Failures, Slots


@dataclass(frozen=True, slots=True)
class Own:
    """The first argument of every endpoint in this room."""

    plane: Plane
    grpc_address: Callable[[], str]
    openapi: bytes
    streams: Slots
    failed_joins: Failures

    @classmethod
    def of(cls, plane: Plane, grpc_address: Callable[[], str], openapi: bytes) -> Own:
        return cls(
            plane=plane,
            grpc_address=grpc_address,
            openapi=openapi,
            streams=Slots(plane.settings.events.max_streams, "event streams"),
            failed_joins=Failures(plane.clock),
        )
