"""What the endpoints of this room work with, given when the app is built."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from skerry.kit.clock import Clock
from skerry.model.settings import FunctionSettings
from skerry.transport.limits import ConcurrencyLimit
from skerry.wire.serverledge.node_headers import NodeHeaders
from skerry.wire.serverledge.ports import (
    AsyncCallService,
    FunctionLogReader,
    FunctionService,
    InvocationService,
)

# Streams of output under way through one server: each holds a connection.
_MAX_STREAMS = 256


@dataclass(frozen=True, slots=True)
class ServerledgeContext:
    """The first argument of every endpoint in this room."""

    functions: FunctionService
    invoker: InvocationService
    asynchronous: AsyncCallService
    logs: FunctionLogReader
    settings: FunctionSettings
    clock: Clock
    url: str  # of this server
    standing: NodeHeaders
    load: Callable[[], tuple[float, float, float]] = os.getloadavg
    streams: ConcurrencyLimit = field(
        default_factory=lambda: ConcurrencyLimit(_MAX_STREAMS, "streams of functions' output")
    )
