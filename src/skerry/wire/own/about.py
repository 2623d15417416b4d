"""What this server is: version, metrics, and the description of its API."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry import __version__
from skerry.kit import metrics
from skerry.transport.http.endpoints import RawBody, RequestContext, endpoint
from skerry.wire.own.context import OwnContext


class ServerInfo(msgspec.Struct, frozen=True):
    """A running server."""

    version: str
    store: Annotated[str, Meta(description="`sqlite`, `etcd` or `memory`")]
    started_at: Annotated[float, Meta(description="Seconds since the epoch")]
    uptime_s: float
    pid: int
    lacking: Annotated[tuple[str, ...], Meta(description="What this process cannot do, in plain sentences")]
    warnings: Annotated[
        tuple[str, ...], Meta(description="What makes it less safe than it could be, in plain sentences")
    ]
    unreachable: Annotated[
        tuple[str, ...],
        Meta(description="Nodes that this server hears and cannot dial, and why, in plain sentences"),
    ]


@endpoint("GET", "/about", summary="What this server is")
async def about(own: OwnContext, call: RequestContext) -> ServerInfo:
    """Version, age, store, and what is missing on this machine."""
    plane = own.plane
    return ServerInfo(
        version=__version__,
        store=plane.settings.store.url.partition(":")[0].replace("etcds", "etcd"),
        started_at=plane.started_at,
        uptime_s=round(max(0.0, plane.clock.now() - plane.started_at), 3),
        pid=os.getpid(),
        lacking=plane.lacking,
        warnings=plane.warnings,
        unreachable=tuple(plane.unreachable()),
    )


@endpoint("GET", "/metrics", summary="Metrics for Prometheus", media=metrics.CONTENT_TYPE, is_quiet=True)
async def show_metrics(own: OwnContext, call: RequestContext) -> RawBody:
    """Every metric of this process, in the text format."""
    return RawBody(metrics.render())


@endpoint("GET", "/openapi.json", summary="This description")
async def openapi(own: OwnContext, call: RequestContext) -> RawBody:
    """OpenAPI 3.1, made from what is served."""
    return RawBody(await asyncio.to_thread(own.openapi))  # the first time it is made
