"""What the endpoints of this room work with, given when the app is built."""

from __future__ import annotations

from dataclasses import dataclass, field

from skerry.kit.clock import Clock
from skerry.wire.kudo.keeper import Instances, Nodes, Tunnels, Workloads
from skerry.wire.own.limits import Slots

# Streams of output and programs under way through one server: each holds a connection at both ends.
_MAX_TUNNELS = 256


@dataclass(frozen=True, slots=True)
class Kudo:
    """The first argument of every endpoint in this room."""

    workloads: Workloads
    instances: Instances
    nodes: Nodes
    tunnels: Tunnels
    clock: Clock
    slots: Slots = field(default_factory=lambda: Slots(_MAX_TUNNELS, "tunnels to instances"))
