"""What the endpoints of this room work with, given when the app is built."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass

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
# As images and Serverledge name them.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


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
    load: Callable[[], tuple[float, float, float]]
    standing: NodeHeaders
    streams: ConcurrencyLimit

    @classmethod
    def of(
        cls,
        functions: FunctionService,
        invoker: InvocationService,
        asynchronous: AsyncCallService,
        logs: FunctionLogReader,
        settings: FunctionSettings,
        clock: Clock,
        *,
        node: str,
        url: str,
        load: Callable[[], tuple[float, float, float]] = os.getloadavg,
    ) -> ServerledgeContext:
        """`node` is the name of this node, as reports have it."""
        machine = platform.machine()
        architecture = _ARCHITECTURES.get(machine, machine)
        return cls(
            functions=functions,
            invoker=invoker,
            asynchronous=asynchronous,
            logs=logs,
            settings=settings,
            clock=clock,
            url=url,
            load=load,
            standing=NodeHeaders(invoker, clock, node=node, architecture=architecture),
            streams=ConcurrencyLimit(_MAX_STREAMS, "streams of functions' output"),
        )
