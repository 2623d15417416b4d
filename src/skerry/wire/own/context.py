"""The context of Skerry's own endpoints: the control plane, and what requests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from skerry.control.context import ControlPlane
from skerry.transport.limits import ConcurrencyLimit, FailureLimit, shared_limit


class OwnContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    plane: ControlPlane
    grpc_address: Callable[[], str]
    urls: Callable[[], Sequence[str]]  # of the servers of this cloud, this one's first
    openapi: Callable[[], bytes]
    streams: ConcurrencyLimit
    failed_joins: FailureLimit

    @classmethod
    def of(
        cls,
        plane: ControlPlane,
        grpc_address: Callable[[], str],
        urls: Callable[[], Sequence[str]],
        openapi: Callable[[], bytes],
    ) -> OwnContext:
        return cls(
            plane=plane,
            grpc_address=grpc_address,
            urls=urls,
            openapi=openapi,
            streams=shared_limit(plane.settings.events.max_streams, "event streams"),
            failed_joins=FailureLimit(plane.clock),
        )
