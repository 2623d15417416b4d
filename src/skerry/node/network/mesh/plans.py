"""What the mesh interface of a node should be, from the peers that it was told of. Pure.

`decide` says which peer gets which addresses: packets for a node that cannot be reached directly go to its
relay. `write_wireguard` is the text for `wg syncconf`, `read_dump` reads `wg show dump`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network

import msgspec

from skerry.kit.networks import Network
from skerry.model.ids import NodeId
from skerry.model.ipv6_addresses import ipv6_network_of
from skerry.model.mesh import MeshPeer, probe_address

KEEPALIVE_S = 20  # routers forget UDP flows after 30 s or more


class PeerConfig(msgspec.Struct, frozen=True):
    """A peer of the interface. A node that replaces its key is two: the one of the new key has no
    addresses."""

    node: NodeId
    public_key: str
    subnets: tuple[IPv4Network, ...] = ()  # that are reached by it, its own and those that it relays for
    has_probe: bool = True
    endpoint: str = ""  # to begin with
    has_ipv6: bool = False  # the IPv6 addresses of `subnets` are reached by it, too

    @property
    def networks(self) -> tuple[Network, ...]:
        """All that is reached by it."""
        return (*self.subnets, *(map(ipv6_network_of, self.subnets) if self.has_ipv6 else ()))

    @property
    def allowed(self) -> tuple[str, ...]:
        probe = (f"{probe_address(self.node)}/128",) if self.has_probe else ()
        return (*probe, *map(str, self.networks))


class PeerStatus(msgspec.Struct, frozen=True):
    """A peer as the interface knows it."""

    public_key: str
    endpoint: str = ""
    handshake_at: float = 0.0
    received: int = 0
    sent: int = 0


def decide(
    peers: Mapping[str, MeshPeer],
    active_keys: Mapping[NodeId, str],
    local: Iterable[IPv4Network],
    *,
    has_ipv6: bool = False,
) -> list[PeerConfig]:
    """The peers of the interface, by node.

    `active_keys`: of nodes that are replacing their key, the one that they use now. `local`: networks that
    this machine reaches otherwise, which stay as they are. `has_ipv6`: of this node's containers; a peer that
    has none drops what is sent to it.
    """
    known = {peer.node: peer for peer in peers.values()}
    occupied = list(local)
    subnets: dict[NodeId, list[IPv4Network]] = {node: [] for node in known}
    taken: list[IPv4Network] = []
    for node in sorted(known):
        peer = known[node]
        hop = _hop(peer, known)
        for text in peer.subnets:
            network = IPv4Network(text)
            if not any(network.overlaps(each) for each in (*occupied, *taken)):
                taken.append(network)
                subnets[hop].append(network)
    configs = []
    for node in sorted(known):
        peer = known[node]
        active = active_keys.get(node, peer.public_key)
        endpoint = peer.endpoints[0] if peer.endpoints else ""
        reached = tuple(sorted(subnets[node]))
        configs.append(PeerConfig(node, active, reached, endpoint=endpoint, has_ipv6=has_ipv6))
        others = [key for key in (peer.public_key, peer.next_key) if key and key != active]
        configs.extend(PeerConfig(node, key, has_probe=False, endpoint=endpoint) for key in others)
    return configs


def unreachable(peers: Mapping[str, MeshPeer], is_up: Mapping[NodeId, bool | None]) -> frozenset[NodeId]:
    """The nodes to which no packet gets now: their own link, or that of their relay, is down. `is_up`: links
    of this node; None: not known yet."""
    known = {peer.node: peer for peer in peers.values()}
    return frozenset(node for node, peer in known.items() if is_up.get(_hop(peer, known)) is False)


def _hop(peer: MeshPeer, known: Mapping[NodeId, MeshPeer]) -> NodeId:
    """The peer that packets for the subnets of `peer` go to."""
    return peer.node if peer.via is None or peer.via not in known else peer.via


def routes(configs: Iterable[PeerConfig]) -> frozenset[Network]:
    """The networks that are reached by the interface."""
    return frozenset(network for config in configs for network in config.networks)


def write_wireguard(private_key: str, port: int, configs: Iterable[PeerConfig], known: Iterable[str]) -> str:
    """For `wg syncconf`. Peers whose keys are `known` keep their present endpoints."""
    present = frozenset(known)
    parts = [f"[Interface]\nPrivateKey = {private_key}\nListenPort = {port}\n"]
    for config in configs:
        endpoint = (
            f"Endpoint = {config.endpoint}\n" if config.endpoint and config.public_key not in present else ""
        )
        allowed = f"AllowedIPs = {', '.join(config.allowed)}\n" if config.allowed else ""
        parts.append(
            f"[Peer]\nPublicKey = {config.public_key}\n{allowed}{endpoint}"
            f"PersistentKeepalive = {KEEPALIVE_S}\n"
        )
    return "\n".join(parts)


def read_dump(text: str) -> tuple[int, dict[str, PeerStatus]]:
    """The port and the peers in the output of `wg show INTERFACE dump`."""
    lines = [line.split("\t") for line in text.splitlines()]
    if not lines or len(lines[0]) < 4:
        return 0, {}
    found = {}
    for fields in lines[1:]:
        key, _, endpoint, _, handshake, received, sent, _ = fields[:8]
        found[key] = PeerStatus(
            key, "" if endpoint == "(none)" else endpoint, float(handshake), int(received), int(sent)
        )
    return int(lines[0][2]), found
