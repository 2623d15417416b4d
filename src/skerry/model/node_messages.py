"""Messages of the node session.

The node sends `NodeHello` and gets `SessionConfig`; from then on the control plane sends orders,
acknowledgements, requests for tunnels, addresses of servers, revoked certificates, volumes, network objects,
and members and functions if the node is a member, and the node sends reports.
`skerry.transport.links.nodes` transports them; `skerry.control.sessions.node_session` and
`skerry.node.agent.agent` handle them.
"""

from __future__ import annotations

import msgspec

from skerry.model.callers import RevokedCertificate
from skerry.model.functions import Function
from skerry.model.ids import FunctionName, InstanceId, NodeId
from skerry.model.members import ContinuumMember
from skerry.model.network_objects import NetworkKey, NetworkObject
from skerry.model.nodes import NodeFacts
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.secrets import SecretRef
from skerry.model.streams import StreamRequest
from skerry.model.volumes import VolumeOrder, VolumeReport

MAX_CLAIMS = 10_000  # in one message, and as many revoked certificates
MAX_OCCUPIED = 1000  # and as many former subnets
MAX_SECRETS_REQUESTED = 1000  # in one message
MAX_VOLUME_REPORTS = 500  # in one message


class NodeHello(msgspec.Struct, frozen=True):
    """A node as it is now. Sent first, and again whenever something of it has changed."""

    name: str
    facts: NodeFacts = NodeFacts()
    resources: Resources = NO_RESOURCES  # measured: all resources for cells
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    subnet: str = ""  # that it would like, or that its containers have now; empty: it takes whatever it gets
    member: ContinuumMember | None = None  # None: it takes no calls of functions
    takes_revocations: bool = False  # nodes from before this field get none
    occupied: tuple[str, ...] = ()  # networks that its machine reaches otherwise; no use as its subnet
    makes_claims: bool = False  # what it has and is not ordered, it claims; nodes of before remove it
    former: tuple[str, ...] = ()  # subnets that it had before and of which containers still have addresses


class SessionConfig(msgspec.Struct, frozen=True):
    """The configuration of a node from the control plane, also after the connection is lost."""

    node: NodeId
    subnet: str  # of its containers, its own for as long as it is registered
    report_s: float  # it must send a message at least this often
    restart_base_s: float  # first pause before a restart; doubles
    restart_cap_s: float
    restart_reset_s: float  # a run that lasts this long begins a new count of restarts
    silence_s: float = (
        0.0  # without a message of the server for this long the node connects to another; 0: never
    )
    takes_claims: bool = False  # what is not in a whole set of orders is to be claimed, not removed
    wants_claims: bool = False  # all that the node has is to be claimed now: the store was restored
    joins_mesh: bool = False  # a borrowed node: its containers are part of this cloud's network


class OrderUpdate(msgspec.Struct, frozen=True):
    """Orders of the node. A full update is complete: an instance that is not in it is to be claimed, or
    stopped and removed if the server takes no claims.

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
    """What a restored control plane may not know: instances without an order on this connection, each of
    which is answered with an order or with `removed`, and revoked certificates."""

    claims: tuple[InstanceClaim, ...] = ()
    revoked: tuple[RevokedCertificate, ...] = ()


class ReportBatch(msgspec.Struct, frozen=True):
    """What the node saw since its last batch. `sequence` counts the batches of one connection from 1 on."""

    sequence: int
    reports: tuple[InstanceReport, ...] = ()


class ReportAck(msgspec.Struct, frozen=True):
    """All batches up to `sequence` are durable; the node may drop them."""

    sequence: int


class TunnelRequest(msgspec.Struct, frozen=True):
    """Dial a tunnel of this id at once: a caller waits for the `stream` at its other end."""

    id: str
    instance: InstanceId
    stream: StreamRequest


class ServerList(msgspec.Struct, frozen=True):
    """Where the servers of the cloud are now (HOST:PORT), this one among them; any of them will do."""

    addresses: tuple[str, ...]


class MemberList(msgspec.Struct, frozen=True):
    """All members now, the node itself among them. Only for members."""

    members: tuple[ContinuumMember, ...]


class FunctionUpdate(msgspec.Struct, frozen=True):
    """What is registered: all of it in a whole set, which comes first, then changes. Only for members."""

    is_full: bool
    functions: tuple[Function, ...] = ()
    removed: tuple[FunctionName, ...] = ()  # no longer registered; not in a whole set


class RevocationUpdate(msgspec.Struct, frozen=True):
    """Certificates that were revoked and have not expired: first all that the server knows, then new ones.
    Only for nodes that accept them."""

    revoked: tuple[RevokedCertificate, ...] = ()


class SecretRequest(msgspec.Struct, frozen=True):
    """Values that the node needs for its instances and functions; each is answered by a `SecretValue`."""

    refs: tuple[SecretRef, ...]


class SecretValue(msgspec.Struct, frozen=True):
    """A value that was requested, or why the node does not get it."""

    ref: SecretRef
    data: bytes = b""
    error: str = ""  # in a sentence; empty: `data` is the value

    def __repr__(self) -> str:
        return f"SecretValue({self.ref}, {len(self.data)} bytes, {self.error!r})"


class SecretDelivery(msgspec.Struct, frozen=True):
    """Answers to a `SecretRequest`."""

    values: tuple[SecretValue, ...]


class VolumeUpdate(msgspec.Struct, frozen=True):
    """Volumes of the node: first all of them, then changes. Volumes that are not in it stay. Only for nodes
    with the feature."""

    orders: tuple[VolumeOrder, ...] = ()


class VolumeReportBatch(msgspec.Struct, frozen=True):
    """Volumes that the node has: first all of them, then those that changed."""

    reports: tuple[VolumeReport, ...] = ()


class NetworkUpdate(msgspec.Struct, frozen=True):
    """Network objects for the node: all of them in a full update, which comes first, then changes. Only for
    nodes with the feature."""

    is_full: bool
    objects: tuple[NetworkObject, ...] = ()
    removed: tuple[NetworkKey, ...] = ()  # not in a full update


class NetworkReportBatch(msgspec.Struct, frozen=True):
    """Network objects that the node reports: first all of them, then those that changed."""

    objects: tuple[NetworkObject, ...] = ()


class SessionHeartbeat(msgspec.Struct, frozen=True):
    """The sender, server or node, is alive."""

    report_s: float = 0.0  # of a server: the node may send messages less often now; 0: as often as before


class SessionClose(msgspec.Struct, frozen=True):
    """The server ends the session; the node connects again, to another server if it knows one."""

    reason: str


ServerMessage = (
    OrderUpdate
    | ReportAck
    | TunnelRequest
    | ServerList
    | MemberList
    | FunctionUpdate
    | RevocationUpdate
    | SecretDelivery
    | VolumeUpdate
    | NetworkUpdate
    | SessionHeartbeat
    | SessionClose
)
NodeMessage = (
    NodeHello
    | ReportBatch
    | ClaimBatch
    | SecretRequest
    | VolumeReportBatch
    | NetworkReportBatch
    | SessionHeartbeat
)
