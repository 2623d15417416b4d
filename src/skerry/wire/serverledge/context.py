"""What the endpoints of this room work with, given when the app is built."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field

from skerry.kit.clock import Clock
from skerry.model.settings import FunctionSettings
from skerry.wire.own.limits import Slots
from skerry.wire.serverledge.keeper import Asynchronous, Functions, Invoker, Logs

# Streams of output under way through one server: each holds a connection.
_MAX_STREAMS = 256
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _architecture() -> str:
    """As images and Serverledge name it."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


@dataclass(frozen=True, slots=True)
class Serverledge:
    """The first argument of every endpoint in this room."""

    functions: Functions
    invoker: Invoker
    asynchronous: Asynchronous
    logs: Logs
    settings: FunctionSettings
    clock: Clock
    node: str  # its name, as reports have it
    url: str  # of this server, for `/status`
    architecture: str = field(default_factory=_architecture)
    load: Callable[[], tuple[float, float, float]] = os.getloadavg
    streams: Slots = field(default_factory=lambda: Slots(_MAX_STREAMS, "streams of functions' output"))
