"""About this server: version, metrics, and the description of its API."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry import __version__
from skerry.kit import metrics
from skerry.transport.http.endpoints import RawBody, RequestContext, Response, endpoint
from skerry.wire.own.context import OwnContext


class ServerInfo(msgspec.Struct, frozen=True):
    """A running server."""

    version: str
    store: Annotated[str, Meta(description="`sqlite`, `etcd` or `memory`")]
    started_at: Annotated[float, Meta(description="Seconds since the epoch")]
    uptime_s: float
    pid: int
    lacking: Annotated[tuple[str, ...], Meta(description="What this process cannot do, in plain sentences")]
    warnings: Annotated[tuple[str, ...], Meta(description="Security warnings, in plain sentences")]
    unreachable: Annotated[
        tuple[str, ...],
        Meta(
            description="Nodes that report to this server but that it cannot dial, and why, in plain "
            "sentences"
        ),
    ]
    caller: Annotated[str, Meta(description="The name of the caller, as in events and logs")] = ""
    role: Annotated[str, Meta(description="The role of the caller")] = ""
    namespaces: Annotated[
        tuple[str, ...] | None,
        Meta(description="Namespaces that the caller is bound to, its default first; null: the whole cloud"),
    ] = None


@endpoint("GET", "/about", summary="About this server")
async def about(own: OwnContext, call: RequestContext) -> ServerInfo:
    """Version, uptime, store, and what this process cannot do; and who the caller is.

    A caller that is bound to namespaces gets no warnings, and nothing of nodes.
    """
    plane = own.plane
    is_bound = call.caller.scope.is_bound
    return ServerInfo(
        version=__version__,
        store=plane.settings.store.url.partition(":")[0].replace("etcds", "etcd"),
        started_at=plane.started_at,
        uptime_s=round(max(0.0, plane.clock.now() - plane.started_at), 3),
        pid=os.getpid(),
        lacking=() if is_bound else plane.lacking,
        warnings=() if is_bound else plane.warnings,
        unreachable=() if is_bound else tuple(plane.unreachable()),
        caller=call.caller.name,
        role=call.caller.role or "",
        namespaces=call.caller.namespaces,
    )


@endpoint(
    "GET",
    "/metrics",
    summary="Metrics for Prometheus",
    media=metrics.CONTENT_TYPE,
    headers={"Accept": "`application/openmetrics-text` for OpenMetrics"},
    is_quiet=True,
)
async def show_metrics(own: OwnContext, call: RequestContext) -> RawBody | Response:
    """Every metric of this process, in the text format. Scrapes that follow each other within a moment may
    get the same text."""
    made = await metrics.EXPOSITIONS.render(is_open=wants_open_metrics(call))
    return Response(RawBody(made.content), media=made.media)


@endpoint("GET", "/openapi.json", summary="This description")
async def openapi(own: OwnContext, call: RequestContext) -> RawBody:
    """OpenAPI 3.1, generated from the endpoints."""
    return RawBody(await asyncio.to_thread(own.openapi))  # generated at the first request


def wants_open_metrics(call: RequestContext) -> bool:
    """Whether metrics are to be in OpenMetrics."""
    return metrics.accepts_open_metrics(call.headers.get(b"accept", b"").decode("latin-1"))
