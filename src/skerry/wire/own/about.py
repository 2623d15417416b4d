"""What this server is: version, metrics, and the description of its API."""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry import __version__
from skerry.kit import metrics
from skerry.wire.http.endpoints import Call, Raw, endpoint
from skerry.wire.own.context import Own


class About(msgspec.Struct, frozen=True):
    """A running server."""

    version: str
    store: Annotated[str, Meta(description="`sqlite`, `etcd` or `memory`")]
    started_at: Annotated[float, Meta(description="Seconds since the epoch")]
    uptime_s: float
    pid: int
    lacking: Annotated[tuple[str, ...], Meta(description="What this process cannot do, in plain sentences")]


@endpoint("GET", "/about", summary="What this server is")
async def about(own: Own, call: Call) -> About:
    """Version, age, store, and what is missing on this machine."""
    plane = own.plane
    return About(
        version=__version__,
        store=plane.settings.store.url.partition(":")[0].replace("etcds", "etcd"),
        started_at=plane.started_at,
        uptime_s=round(max(0.0, plane.clock.now() - plane.started_at), 3),
        pid=os.getpid(),
        lacking=plane.lacking,
    )


@endpoint("GET", "/metrics", summary="Metrics for Prometheus", media=metrics.CONTENT_TYPE, is_quiet=True)
async def show_metrics(own: Own, call: Call) -> Raw:
    """Every metric of this process, in the text format."""
    return Raw(metrics.render())


@endpoint("GET", "/openapi.json", summary="This description")
async def openapi(own: Own, call: Call) -> Raw:
    """OpenAPI 3.1, made from what is served."""
    return Raw(own.openapi)
