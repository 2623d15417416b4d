"""Metrics of nodes through a tunnel, and where Prometheus finds those of all servers and nodes.

Nodes dial out, so a Prometheus cannot reach them: the server that is asked relays their text as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from skerry.control.nodes.registry import NodeRegistry
from skerry.control.sessions.tunnels import NodeTunnels
from skerry.kit import metrics
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.ids import InstanceId
from skerry.model.nodes import Liveness, Node
from skerry.model.streams import MetricsRequest, TunnelChannel, TunnelFrame
from skerry.transport.http.endpoints import Endpoint, RawBody, RequestContext, Response, endpoint
from skerry.transport.limits import ConcurrencyLimit, shared_limit
from skerry.wire.own.about import wants_open_metrics

MAX_BYTES: Final = 16 * 1024 * 1024  # of the text of a node
_WITHIN_S: Final = 10.0
_AT_ONCE: Final = 64
_TUNNEL: Final = InstanceId("metrics")  # a tunnel has the id of an instance; this is of none


class TelemetryContext(msgspec.Struct, frozen=True):
    """The first argument of the endpoints that a server has, and a node does not."""

    nodes: NodeRegistry
    tunnels: NodeTunnels
    own_url: str
    servers: Callable[[], Sequence[str]]  # URLs of all live servers
    slots: ConcurrencyLimit = msgspec.field(
        default_factory=lambda: shared_limit(_AT_ONCE, "scrapes of nodes")
    )


class ScrapedNodePath(msgspec.Struct, frozen=True):
    id: Annotated[
        str, Meta(min_length=1, max_length=256, description="Its id, or its name if that is unique")
    ]


class TargetGroup(msgspec.Struct, frozen=True):
    """One target, as `http_sd_configs` of Prometheus reads it."""

    targets: tuple[str, ...]
    labels: dict[str, str]


@endpoint(
    "GET",
    "/node/{id}/metrics",
    summary="Metrics of a node",
    media=metrics.CONTENT_TYPE,
    headers={"Accept": "`application/openmetrics-text` for OpenMetrics"},
    raises=(
        errors.NotFound,
        errors.FailedPrecondition,
        errors.Unavailable,
        errors.TimedOut,
        errors.Overloaded,
    ),
    is_quiet=True,
)
async def show_node_metrics(
    context: TelemetryContext, call: RequestContext, path: ScrapedNodePath
) -> RawBody | Response:
    """As the node gives them, relayed: Prometheus cannot reach nodes, which only dial out."""
    node = context.nodes.get(path.id)
    if NodeFeature.METRICS not in node.facts.features:
        raise errors.FailedPrecondition(
            f"node {node.id} does not send metrics: it is part of a server, whose /metrics has them, is of "
            "another cloud, or runs an earlier version of Skerry"
        )
    is_open = wants_open_metrics(call)
    with context.slots.take(call.caller.tenant):
        try:
            async with asyncio.timeout(_WITHIN_S):
                text = await _read(context, node, is_open)
        except TimeoutError:
            raise errors.TimedOut(f"node {node.id} did not send its metrics within {_WITHIN_S:g} s") from None
    return Response(RawBody(text), media=metrics.media_type(is_open=is_open))


@endpoint("GET", "/metrics/targets", summary="Targets of Prometheus", is_quiet=True)
async def list_targets(context: TelemetryContext, call: RequestContext) -> tuple[TargetGroup, ...]:
    """All servers, and all nodes that can be scraped, for `http_sd_configs`. Nodes are scraped through the
    server that is asked, under the name that it was asked by."""
    own = call.headers.get(b"host", b"").decode("latin-1") or urlsplit(context.own_url).netloc
    scheme = urlsplit(context.own_url).scheme
    return tuple(_targets(context, own, scheme))


def _targets(context: TelemetryContext, own: str, scheme: str) -> Iterator[TargetGroup]:
    for url in dict.fromkeys((context.own_url, *context.servers())):
        split = urlsplit(url)
        address = own if url == context.own_url else split.netloc
        yield _group(address, split.scheme, "/metrics", "server", split.netloc)
    for node in context.nodes.list():
        is_there = context.nodes.liveness(node.id) is not Liveness.LOST
        if is_there and NodeFeature.METRICS in node.facts.features:
            yield _group(own, scheme, f"/node/{node.id}/metrics", "node", node.name)


def _group(address: str, scheme: str, path: str, role: str, name: str) -> TargetGroup:
    labels = {"__scheme__": scheme, "__metrics_path__": path, "instance": name, "skerry_role": role}
    return TargetGroup((address,), labels)


async def _read(context: TelemetryContext, node: Node, is_open: bool) -> bytes:
    parts: list[bytes] = []
    size = 0
    async with context.tunnels.open_tunnel(node.id, _TUNNEL, MetricsRequest(is_open)) as tunnel:
        while (packed := await tunnel.receive()) is not None:
            frame = TunnelFrame.unpack(packed)
            size += len(frame.data)
            if frame.channel is not TunnelChannel.OUTPUT or size > MAX_BYTES:
                raise errors.Unavailable(f"node {node.id} sent something else than its metrics")
            parts.append(frame.data)
    return b"".join(parts)


ENDPOINTS: tuple[Endpoint, ...] = (show_node_metrics, list_targets)
