"""The settings of edge nodes, which serve routes; a part of `skerry.model.settings`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class RouteSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where and how an edge node serves routes, with HAProxy."""

    http: Annotated[
        str, Meta(description="HOST:PORT for requests without TLS; empty: nowhere; 0.0.0.0:80 for the world")
    ] = "127.0.0.1:8080"
    https: Annotated[
        str, Meta(description="HOST:PORT for requests with TLS; empty: nowhere; 0.0.0.0:443 for the world")
    ] = "127.0.0.1:8443"
    max_connections: Annotated[
        int, Meta(ge=16, le=1_000_000, description="Connections of clients at once; more wait")
    ] = 4096
    drain_s: Annotated[
        int,
        Meta(
            ge=1,
            le=86_400,
            description="Open connections, such as WebSockets, stay for so long after routes have changed",
        ),
    ] = 3600
    hold_s: Annotated[
        int,
        Meta(ge=1, le=600, description="A request waits for so long for a service that was scaled to zero"),
    ] = 60
    program: Annotated[str, Meta(description="HAProxy, a name or a path")] = "haproxy"
