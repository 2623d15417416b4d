"""The context of Serverledge's endpoints, which they get when the application is built."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from skerry.kit.clock import Clock
from skerry.model.functions import Function
from skerry.model.settings import FunctionSettings
from skerry.transport.limits import ConcurrencyLimit, shared_limit
from skerry.wire.serverledge.node_headers import NodeHeaders
from skerry.wire.serverledge.ports import (
    AsyncCallService,
    CallsReader,
    FunctionLogReader,
    FunctionService,
    InvocationService,
)

# Concurrent streams of output of one server: each holds a connection.
_MAX_STREAMS = 256


class ServerledgeContext(msgspec.Struct, frozen=True):
    """The first argument of every endpoint of this dialect."""

    functions: FunctionService
    invoker: InvocationService
    asynchronous: AsyncCallService
    logs: FunctionLogReader
    settings: FunctionSettings
    clock: Clock
    url: str  # of this server
    node_headers: NodeHeaders
    calls: CallsReader
    # Raises `QuotaExceeded` if so many more workers do not fit into the quota of the function's namespace.
    check_prewarm: Callable[[Function, int], None] = lambda function, instances: None
    load: Callable[[], tuple[float, float, float]] = os.getloadavg
    streams: ConcurrencyLimit = msgspec.field(
        default_factory=lambda: shared_limit(_MAX_STREAMS, "streams of functions' output")
    )
