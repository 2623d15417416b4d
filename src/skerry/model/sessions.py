"""What a node and the control plane say to each other on the node's one long connection.

The node opens with `Hello` and is answered with `Welcome`; from then on orders, acknowledgements, requests
for tunnels, the whereabouts of servers, and members and functions if it is a member, come down, and reports
go up. How they travel is `skerry.wire.nodes`; what the control plane does with them is
`skerry.control.sessions`, what the node does is `skerry.node.session`.
"""

from __future__ import annotations

import msgspec

from skerry.model.functions import Function
from skerry.model.ids import FunctionName, InstanceId, NodeId
from skerry.model.members import Member
from skerry.model.nodes import Facts
from skerry.model.orders import Order, Report
from skerry.model.room import NOTHING, Room
from skerry.model.tunnels import Ask


class Hello(msgspec.Struct, frozen=True):
    """A node as it is now. Sent first, and again whenever something of it has changed."""

    name: str
    facts: Facts = Facts()
    room: Room = NOTHING  # measured: all there is for cells
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    subnet: str = ""  # that its containers have now; empty: it takes whatever it gets
    member: Member | None = None  # None: it takes no calls of functions


class Welcome(msgspec.Struct, frozen=True):
    """What a node is held to while the connection lasts, and keeps to when it is gone."""

    node: NodeId
    subnet: str  # of its containers, its own for as long as it is registered
    report_s: float  # something must be heard of it at least this often
    restart_base_s: float  # first pause before a restart; doubles
    restart_cap_s: float
    restart_reset_s: float  # a run that lasts this long begins a new count of restarts
    silence_s: float = 0.0  # a server that says nothing for this long is left for another; 0: it never is


class Orders(msgspec.Struct, frozen=True):
    """What the node is to do. A whole set says it all: what is not in it is to be stopped and removed.

    `sequence` counts the messages of one connection from 1 on. Changes come after a whole set, and another
    whole set may come at any time.
    """

    sequence: int
    is_whole: bool
    orders: tuple[Order, ...] = ()
    gone: tuple[InstanceId, ...] = ()  # no longer this node's: to be stopped and removed; not in a whole set


class Reports(msgspec.Struct, frozen=True):
    """What the node saw since its last batch. `sequence` counts the batches of one connection from 1 on."""

    sequence: int
    reports: tuple[Report, ...] = ()


class Acknowledged(msgspec.Struct, frozen=True):
    """All batches up to `sequence` are durable; the node may forget them."""

    sequence: int


class OpenTunnel(msgspec.Struct, frozen=True):
    """Dial a tunnel of this id at once: somebody waits at its other end, for what `ask` says."""

    id: str
    instance: InstanceId
    ask: Ask


class Servers(msgspec.Struct, frozen=True):
    """Where the servers of the cloud are now (HOST:PORT), this one among them; any of them will do."""

    addresses: tuple[str, ...]


class Members(msgspec.Struct, frozen=True):
    """Everybody who takes calls of functions now, the node itself among them. Only for nodes that do."""

    members: tuple[Member, ...]


class Functions(msgspec.Struct, frozen=True):
    """What is registered: all of it in a whole set, which comes first, then changes. Only for members."""

    is_whole: bool
    functions: tuple[Function, ...] = ()
    gone: tuple[FunctionName, ...] = ()  # no longer registered; not in a whole set


class Heartbeat(msgspec.Struct, frozen=True):
    """The server has nothing to say, and is still there."""


class Goodbye(msgspec.Struct, frozen=True):
    """The server lets go of the node, which is to connect again, to another server if it knows one."""

    reason: str


Down = Orders | Acknowledged | OpenTunnel | Servers | Members | Functions | Heartbeat | Goodbye
