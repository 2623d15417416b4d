"""What a node says of itself on its own HTTP listener: `/about`, `/readyz` and `/ca.pem`, in the shape that
servers have, so that the same commands and devices read both."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry import __version__
from skerry.kit.clock import Clock
from skerry.transport.http.endpoints import Endpoint, RawBody, RequestContext, Response, endpoint
from skerry.wire.own import health
from skerry.wire.own.certificates import PEM
from skerry.wire.own.health import ReadinessDocument


class NodeInfoContext(msgspec.Struct, frozen=True):
    """What the endpoints work with."""

    node: str
    name: str
    server: str
    clock: Clock
    started_at: float
    authority_pem: Callable[[], bytes]
    checks: Mapping[str, Callable[[], Awaitable[None]]]
    urls: Callable[[], tuple[str, ...]]
    contact_at: Callable[[], float]
    lacking: tuple[str, ...]
    warnings: Callable[[], tuple[str, ...]]


class NodeInfo(msgspec.Struct, frozen=True):
    """A running node."""

    version: str
    node: str
    name: str
    server: Annotated[str, Meta(description="URL of the server that it joined")]
    urls: Annotated[tuple[str, ...], Meta(description="Where devices call it")]
    contact_at: Annotated[
        float | None,
        Meta(
            description="Last contact with a server, seconds since the epoch; null: none, or not of interest"
        ),
    ]
    started_at: Annotated[float, Meta(description="Seconds since the epoch")]
    uptime_s: float
    pid: int
    lacking: Annotated[tuple[str, ...], Meta(description="What this process cannot do, in plain sentences")]
    warnings: Annotated[tuple[str, ...], Meta(description="Security warnings, in plain sentences")]
    caller: Annotated[str, Meta(description="The name of the caller, as in logs")] = ""
    role: Annotated[str, Meta(description="The role of the caller")] = ""
    namespaces: Annotated[
        tuple[str, ...] | None,
        Meta(description="Namespaces that the caller is bound to, its default first; null: the whole cloud"),
    ] = None


@endpoint("GET", "/about", summary="About this node")
async def about(context: NodeInfoContext, call: RequestContext) -> NodeInfo:
    """Version, uptime, where devices call it, and who the caller is. A caller that is bound to namespaces
    gets no warnings."""
    is_bound = call.caller.scope.is_bound
    return NodeInfo(
        version=__version__,
        node=context.node,
        name=context.name,
        server="" if is_bound else context.server,
        urls=context.urls(),
        contact_at=context.contact_at() or None,
        started_at=context.started_at,
        uptime_s=round(max(0.0, context.clock.now() - context.started_at), 3),
        pid=os.getpid(),
        lacking=() if is_bound else context.lacking,
        warnings=() if is_bound else context.warnings(),
        caller=call.caller.name,
        role=call.caller.role or "",
        namespaces=call.caller.namespaces,
    )


@endpoint(
    "GET",
    "/readyz",
    summary="Readiness of the node",
    extra_statuses={503: "Something is not ready; `checks` says what."},
    is_quiet=True,
)
async def readyz(context: NodeInfoContext, call: RequestContext) -> ReadinessDocument | Response:
    """Whether calls of functions are taken; a server that is away changes nothing."""
    return await health.run_checks(context.checks)


@endpoint("GET", "/ca.pem", summary="The CA's certificate", media=PEM)
async def show_authority(context: NodeInfoContext, call: RequestContext) -> RawBody:
    """For devices, to verify this node and the servers of its cloud; compare its fingerprint first."""
    return RawBody(await asyncio.to_thread(context.authority_pem))


ENDPOINTS: tuple[Endpoint, ...] = (about, readyz, show_authority)
