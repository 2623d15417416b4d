"""What a node and the control plane say to each other on the node's one long connection.

The node opens with `NodeHello` and is answered with `SessionConfig`; from then on orders, acknowledgements,
requests for tunnels, the whereabouts of servers, revoked certificates, and members and functions if it is a
member, come down, and reports go up. How they travel is `skerry.transport.links.nodes`; what the control
plane does with them is `skerry.control.sessions.node_session`, what the node does is
`skerry.node.agent.agent`.
"""

from __future__ import annotations

import msgspec

from skerry.model.callers import RevokedCertificate
from skerry.model.functions import Function
from skerry.model.ids import FunctionName, InstanceId, NodeId
from skerry.model.members import ContinuumMember
from skerry.model.nodes import NodeFacts
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.streams import StreamRequest

MAX_CLAIMS = 10_000  # in one message, and as many revoked certificates
MAX_OCCUPIED = 1000  # and as many former subnets


class NodeHello(msgspec.Struct, frozen=True):
    """A node as it is now. Sent first, and again whenever something of it has changed."""

    name: str
    facts: NodeFacts = NodeFacts()
    resources: Resources = NO_RESOURCES  # measured: all there is for cells
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    subnet: str = ""  # that it would like, or that its containers have now; empty: it takes whatever it gets
    member: ContinuumMember | None = None  # None: it takes no calls of functions
    takes_revocations: bool = False  # nodes of before this field are told of none
    occupied: tuple[str, ...] = ()  # networks that its machine reaches otherwise; no use as its subnet
    makes_claims: bool = False  # what it has and is not ordered, it claims; nodes of before remove it
    former: tuple[str, ...] = ()  # subnets that it had before and of which containers still have addresses


class SessionConfig(msgspec.Struct, frozen=True):
    """What a node is held to while the connection lasts, and keeps to when it is gone."""

    node: NodeId
    subnet: str  # of its containers, its own for as long as it is registered
    report_s: float  # something must be heard of it at least this often
    restart_base_s: float  # first pause before a restart; doubles
    restart_cap_s: float
    restart_reset_s: float  # a run that lasts this long begins a new count of restarts
    silence_s: float = 0.0  # a server that says nothing for this long is left for another; 0: it never is
    takes_claims: bool = False  # what is not in a whole set of orders is to be claimed, not removed
    wants_claims: bool = False  # all that the node has is to be claimed now: the store was restored


class OrderUpdate(msgspec.Struct, frozen=True):
    """What the node is to do. A whole set says it all: what is not in it is to be claimed, or stopped and
    removed if the server takes no claims.

    `sequence` counts the messages of one connection from 1 on. Changes come after a whole set, and another
    whole set may come at any time.
    """

    sequence: int
    is_full: bool
    orders: tuple[InstanceOrder, ...] = ()
    removed: tuple[
        InstanceId, ...
    ] = ()  # no longer this node's: to be stopped and removed; not in a whole set


class InstanceClaim(msgspec.Struct, frozen=True):
    """An instance that the node has, as it is, with the receipt of its order."""

    receipt: bytes
    report: InstanceReport


class ClaimBatch(msgspec.Struct, frozen=True):
    """What the node knows and the control plane may have forgotten: instances that it was not ordered over
    this connection, each of which is answered with an order or with `removed`, and revoked certificates."""

    claims: tuple[InstanceClaim, ...] = ()
    revoked: tuple[RevokedCertificate, ...] = ()


class ReportBatch(msgspec.Struct, frozen=True):
    """What the node saw since its last batch. `sequence` counts the batches of one connection from 1 on."""

    sequence: int
    reports: tuple[InstanceReport, ...] = ()


class ReportAck(msgspec.Struct, frozen=True):
    """All batches up to `sequence` are durable; the node may forget them."""

    sequence: int


class TunnelRequest(msgspec.Struct, frozen=True):
    """Dial a tunnel of this id at once: somebody waits at its other end, for what `stream` says."""

    id: str
    instance: InstanceId
    stream: StreamRequest


class ServerList(msgspec.Struct, frozen=True):
    """Where the servers of the cloud are now (HOST:PORT), this one among them; any of them will do."""

    addresses: tuple[str, ...]


class MemberList(msgspec.Struct, frozen=True):
    """Everybody who takes calls of functions now, the node itself among them. Only for nodes that do."""

    members: tuple[ContinuumMember, ...]


class FunctionUpdate(msgspec.Struct, frozen=True):
    """What is registered: all of it in a whole set, which comes first, then changes. Only for members."""

    is_full: bool
    functions: tuple[Function, ...] = ()
    removed: tuple[FunctionName, ...] = ()  # no longer registered; not in a whole set


class RevocationUpdate(msgspec.Struct, frozen=True):
    """Certificates that were revoked and have not expired: first all that the server knows of, then further
    ones. Only for nodes that take them."""

    revoked: tuple[RevokedCertificate, ...] = ()


class SessionHeartbeat(msgspec.Struct, frozen=True):
    """Whoever sends it, server or node, has nothing to say and is still there."""


class SessionClose(msgspec.Struct, frozen=True):
    """The server lets go of the node, which is to connect again, to another server if it knows one."""

    reason: str


ServerMessage = (
    OrderUpdate
    | ReportAck
    | TunnelRequest
    | ServerList
    | MemberList
    | FunctionUpdate
    | RevocationUpdate
    | SessionHeartbeat
    | SessionClose
)
NodeMessage = NodeHello | ReportBatch | ClaimBatch | SessionHeartbeat
