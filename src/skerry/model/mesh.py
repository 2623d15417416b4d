"""The mesh: what nodes report of it, and what they are told of their peers.

Network objects (`skerry.model.network_objects`). A node reports itself (`MeshNode`) and its links to others
(`MeshLinks`); `skerry.control.mesh` keeps both and tells every node its peers (`MeshPeer`);
`skerry.node.network.mesh` makes the links. Public keys only: private ones never leave their node.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import ipaddress
from ipaddress import IPv6Address
from typing import ClassVar, Final

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkObject

MAX_ENDPOINTS: Final = 12  # of one node
MAX_LINKS: Final = 4096  # of one node
_PROBE_PREFIX: Final = b"\xfd\x53"  # unique local addresses
PROBE_NETWORK: Final = "fd53::/16"
_KEY_BYTES: Final = 32
_MAX_TEXT: Final = 64


class MeshEncryption(enum.StrEnum):
    """How packets travel between nodes."""

    WIREGUARD = "wireguard"
    VXLAN = "vxlan"  # in plain text: for networks that the operator trusts
    NONE = "none"  # there is no mesh


class MeshNode(NetworkObject, frozen=True, omit_defaults=True):
    """What a node reports of itself."""

    kind: ClassVar[str] = "mesh-node"
    node: NodeId
    public_key: str
    port: int
    addresses: tuple[str, ...] = ()  # of its machine
    endpoints: tuple[str, ...] = ()  # ADDRESS:PORT, configured: where others reach it
    next_key: str = ""  # that it will use as soon as its peers know it
    relays: bool = True  # it forwards for nodes that cannot reach each other
    machine: str = ""  # the same for nodes that share one network stack: they need no mesh between them

    @property
    def key(self) -> str:
        return self.node

    def __post_init__(self) -> None:
        ids.check_id(self.node, "node")
        for key in (self.public_key, *((self.next_key,) if self.next_key else ())):
            check_public_key(key)
        if not 0 < self.port < 65536:
            raise errors.Invalid(f"{self.port} is no port", field="port")
        if len(self.addresses) > MAX_ENDPOINTS or len(self.endpoints) > MAX_ENDPOINTS:
            raise errors.Invalid(f"a node has at most {MAX_ENDPOINTS} endpoints", field="endpoints")
        if len(self.machine) > _MAX_TEXT:
            raise errors.Invalid("too long", field="machine")
        for address in self.addresses:
            check_address(address)
        for endpoint in self.endpoints:
            parse_endpoint(endpoint)


class MeshLink(msgspec.Struct, frozen=True, omit_defaults=True):
    """A direct link to another node, as one end sees it."""

    node: NodeId
    is_up: bool | None = None  # probes are answered; None: not known yet
    endpoint: str = ""  # where its packets come from
    round_trip_ms: float | None = None
    handshake_at: float = 0.0  # 0: never
    received: int = 0  # bytes
    sent: int = 0
    public_key: str = ""  # that this end uses for the other
    next_key: str = ""  # that this end would accept too


class MeshLinks(NetworkObject, frozen=True, omit_defaults=True):
    """What a node reports of its links."""

    kind: ClassVar[str] = "mesh-links"
    node: NodeId
    links: tuple[MeshLink, ...] = ()

    @property
    def key(self) -> str:
        return self.node

    def __post_init__(self) -> None:
        ids.check_id(self.node, "node")
        if len(self.links) > MAX_LINKS:
            raise errors.Invalid(f"a node reports at most {MAX_LINKS} links", field="links")
        for link in self.links:
            ids.check_id(link.node, "node")
            for key in (link.public_key, link.next_key):
                if key:
                    check_public_key(key)
            if link.endpoint:
                parse_endpoint(link.endpoint)

    @property
    def by_node(self) -> dict[NodeId, MeshLink]:
        return {link.node: link for link in self.links}


class MeshPeer(NetworkObject, frozen=True, omit_defaults=True):
    """Another node of the mesh, as one node is told of it."""

    kind: ClassVar[str] = "mesh-peer"
    node: NodeId
    name: str
    public_key: str
    subnets: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()  # to try, the most likely first
    next_key: str = ""
    via: NodeId | None = None  # the peer that packets for its subnets go to; None: itself
    known_key: str = ""  # of the node that is told this: the newest key that this peer accepts
    encryption: MeshEncryption = MeshEncryption.WIREGUARD

    @property
    def key(self) -> str:
        return self.node


def check_public_key(text: str) -> str:
    """A public key as `wg` writes it: 32 bytes in base64."""
    try:
        is_key = len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        is_key = False
    if not is_key:
        raise errors.Invalid(f"{text[:60]!r} is no public key of WireGuard", field="public_key")
    return text


def check_address(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise errors.Invalid(f"{text[:60]!r} is no IP address", field="addresses") from None
    return text


def parse_endpoint(text: str) -> tuple[str, int]:
    """The address and port of `1.2.3.4:51825` or `[2001:db8::1]:51825`."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(bare)
        if port.isascii() and port.isdigit() and 0 < int(port) < 65536:
            return str(address), int(port)
    except ValueError:
        pass
    raise errors.Invalid(f"{text[:60]!r} is no endpoint; write ADDRESS:PORT", field="endpoints")


def format_endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def probe_address(node: NodeId) -> IPv6Address:
    """The address that a node answers probes at, on its mesh interface only. Derived from its id, so that
    nobody has to be told; IPv6, so that it collides with no network of a machine."""
    return IPv6Address(_PROBE_PREFIX + hashlib.sha256(b"skerry mesh " + node.encode()).digest()[:14])
