"""Which nodes of the mesh are linked, by which nodes packets go, and where a node may be found. Pure.

Every server decides the same from the same records. WireGuard accepts a packet from a peer only if it would
send the answer to the same peer, so the path from A to B must be the one from B to A at every node on it: it
is, because links have one length in both directions and no two paths of different links have the same.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from skerry.model.ids import NodeId
from skerry.model.mesh import MAX_ENDPOINTS, MeshLink, MeshNode, format_endpoint

# A path has as few links as possible, then as few ends at nodes behind NAT; then any, but always the same.
_HOP = 1 << 96
_NAT = 1 << 80
_HASH_BYTES = 8
_LAN_WIDTHS = {4: 24, 6: 64}
_UNIQUE_LOCAL = ipaddress.IPv6Network("fc00::/7")


class MeshGraph(NamedTuple):
    """The nodes and what is known of links between them. `links[a][b]`: a's end of the link to b."""

    nodes: Collection[NodeId]
    links: Mapping[NodeId, Mapping[NodeId, MeshLink]]
    live: Collection[NodeId]  # whose reports are current
    relays: Collection[NodeId]  # that forward for others
    public: Collection[NodeId]  # that are behind no NAT


def link_state(graph: MeshGraph, one: NodeId, other: NodeId) -> bool | None:
    """True if packets pass between the two, None if nobody knows. Ends that are live count; if none is, the
    last that they knew."""
    ends = [(one, other), (other, one)]
    known = [
        (end, link.is_up)
        for end, far in ends
        if (link := graph.links.get(end, {}).get(far)) is not None and link.is_up is not None
    ]
    states = [is_up for end, is_up in known if end in graph.live] or [is_up for _, is_up in known]
    return all(states) if states else None


def decide_next_hops(graph: MeshGraph) -> dict[NodeId, dict[NodeId, NodeId]]:
    """For each node and each other one that it is connected with, the neighbour that packets go to: itself,
    if the two are linked."""
    neighbours = _neighbours(graph)
    lengths = {
        (one, other): _length(graph, one, other) for one, others in neighbours.items() for other in others
    }
    return {source: _next_hops(source, neighbours, lengths, graph.relays) for source in sorted(neighbours)}


def _neighbours(graph: MeshGraph) -> dict[NodeId, set[NodeId]]:
    nodes = sorted(graph.nodes)
    neighbours: dict[NodeId, set[NodeId]] = {node: set() for node in nodes}
    for index, one in enumerate(nodes):
        for other in nodes[index + 1 :]:
            if link_state(graph, one, other):
                neighbours[one].add(other)
                neighbours[other].add(one)
    return neighbours


def _length(graph: MeshGraph, one: NodeId, other: NodeId) -> int:
    behind_nat = (one not in graph.public) + (other not in graph.public)
    pair = "\0".join(sorted((one, other))).encode()
    tie = int.from_bytes(hashlib.blake2b(pair, digest_size=_HASH_BYTES).digest(), "big")
    return _HOP + behind_nat * _NAT + tie


def _next_hops(
    source: NodeId,
    neighbours: Mapping[NodeId, set[NodeId]],
    lengths: Mapping[tuple[NodeId, NodeId], int],
    relays: Collection[NodeId],
) -> dict[NodeId, NodeId]:
    """Breadth first: all nodes at two links, then at three, each by the shortest path there."""
    found: dict[NodeId, tuple[int, NodeId]] = {
        node: (lengths[source, node], node) for node in neighbours[source]
    }
    edge = set(found)
    missing = neighbours.keys() - found.keys() - {source}
    while edge and missing:
        relaying = {node for node in edge if node in relays}
        reached: dict[NodeId, tuple[int, NodeId]] = {}
        for node in missing:
            paths = [
                (found[last][0] + lengths[last, node], found[last][1]) for last in neighbours[node] & relaying
            ]
            if paths:
                reached[node] = min(paths)
        found |= reached
        edge = set(reached)
        missing -= edge
    return {node: first for node, (_, first) in found.items()}


def path(hops: Mapping[NodeId, Mapping[NodeId, NodeId]], one: NodeId, other: NodeId) -> list[NodeId]:
    """The nodes between two, in order; empty if they are linked. Raises `KeyError` if there is no path."""
    between: list[NodeId] = []
    at = hops[one][other]
    while at != other:
        between.append(at)
        at = hops[at][other]
    return between


def is_public(node: MeshNode, observed: str) -> bool:
    """True if the address that its packets come from is its own, or it says where it is reached."""
    return bool(node.endpoints) or observed in node.addresses


def candidate_endpoints(
    node: MeshNode, observed: str, seen: Iterable[str], near: Sequence[str] = ()
) -> tuple[str, ...]:
    """Where another node may reach this one, the most likely first.

    `observed`: the address that a server sees its session come from. `seen`: endpoints that neighbours see
    its packets come from, which are right unless its router gives every destination another port. `near`:
    addresses of the other node: those of the same network come first, and global ones of IPv6, which no
    router translates, count only if it has one, too.
    """
    own = [format_endpoint(each, node.port) for each in node.addresses]
    close = [format_endpoint(each, node.port) for each in node.addresses if _is_near(each, near)]
    outside = [format_endpoint(observed, node.port)] if _is_dialable(observed) else []
    global6 = [format_endpoint(each, node.port) for each in node.addresses if _is_global6(each)]
    ordered = [*node.endpoints, *close, *outside, *global6, *sorted(seen), *own]
    if near and not any(map(_is_global6, near)):
        ordered = [each for each in ordered if each not in global6]
    return tuple(dict.fromkeys(ordered))[:MAX_ENDPOINTS]


def _is_near(address: str, others: Iterable[str]) -> bool:
    return any(_network(address) == _network(other) for other in others)


@lru_cache(maxsize=65536)
def _network(address: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The usual network of one LAN around an address."""
    width = _LAN_WIDTHS[ipaddress.ip_address(address).version]
    return ipaddress.ip_network((address, width), strict=False)


def _is_global6(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    is_wide = not (parsed.is_link_local or parsed.is_loopback or parsed.is_multicast)
    return parsed.version == 6 and is_wide and parsed not in _UNIQUE_LOCAL


def _is_dialable(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_unspecified or parsed.is_multicast or parsed.is_link_local)
