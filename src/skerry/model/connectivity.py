"""Explains whether a connection in the network of a cloud is allowed, by which rule, and on which node. Pure.

The same decisions as the rules that nodes compile (`skerry.node.network.policy_rules`), in the order in which
a packet meets them: first on the node of the source, then on that of the destination. A test compares both
with what a kernel does. The control plane gathers what is to be known
(`skerry.control.network.explanations`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

import msgspec

from skerry.kit.networks import Network
from skerry.model.ids import Namespace
from skerry.model.network import Egress, Ingress
from skerry.model.network_policies import NamespacePolicy
from skerry.model.ports import PortMapping, Protocol


class EndpointKind(enum.StrEnum):
    """What is at an end of a connection."""

    CONTAINER = "container"
    NODE = "node"  # a program on a node itself: its agent, a route, or a login
    OUTSIDE = "outside"  # any other machine
    SERVICE = "service"  # one without a copy that is ready; others are their containers


class ConnectionRule(enum.StrEnum):
    """What decides on a connection."""

    OPEN = "open"  # no rule denies it
    PUBLISHED = "published"  # the port is published
    NOT_PUBLISHED = "not-published"
    NOT_RUNNING = "not-running"
    NOT_READY = "not-ready"  # no copy of a service is
    NODE_AWAY = "node-away"
    EGRESS = "egress"  # of the source
    METADATA = "metadata"  # link-local and metadata addresses
    NAMESPACE_POLICY = "namespace-policy"  # of the destination
    FUNCTION = "function"  # only its node may call a worker of functions
    GUEST = "guest"  # isolation of what runs on machines of other clouds, or for them


class NetworkEndpoint(msgspec.Struct, frozen=True):
    """One end of a connection. The other fields are of containers, `node` also of nodes."""

    name: str  # for people
    kind: EndpointKind = EndpointKind.OUTSIDE
    address: str = ""  # empty: any, or none yet
    node: str = ""
    namespace: Namespace = Namespace("")
    ingress: Ingress = Ingress.ALL
    egress: Egress = Egress.ALL
    ports: tuple[PortMapping, ...] = ()
    is_guest: bool = False
    is_node_live: bool = True


class ConnectionVerdict(msgspec.Struct, frozen=True):
    """Whether a connection is allowed; `node` is where the rule holds."""

    is_allowed: bool
    rule: ConnectionRule
    reason: str
    node: str = ""


class PublishedPort(msgspec.Struct, frozen=True):
    """A container with a port that its node publishes."""

    container: NetworkEndpoint
    mapping: PortMapping


class ConnectionRequest(msgspec.Struct, frozen=True):
    """A connection to explain: to `port` of the destination."""

    source: NetworkEndpoint
    destination: NetworkEndpoint
    port: int
    protocol: Protocol = Protocol.TCP


class ReservedNetworks(msgspec.Struct, frozen=True):
    """Address ranges that are not the internet."""

    metadata: tuple[Network, ...] = ()
    private: tuple[Network, ...] = ()


ANY_NETWORKS: Final = ReservedNetworks()


def explain(
    request: ConnectionRequest,
    policy_of: Callable[[Namespace], NamespacePolicy],
    published: Callable[[str, int, Protocol], PublishedPort | None] = lambda node, port, protocol: None,
    networks: ReservedNetworks = ANY_NETWORKS,
) -> ConnectionVerdict:
    """`published` returns what a node publishes as a port."""
    source, destination = request.source, request.destination
    if source.kind is EndpointKind.SERVICE:
        return _denied(ConnectionRule.NOT_READY, f"{source.name} has no copy that is ready", source)
    for end in (source, destination):
        if end.kind is EndpointKind.CONTAINER and not end.address:
            return _denied(ConnectionRule.NOT_RUNNING, f"{end.name} does not run, and has no address", end)
        if end.kind is not EndpointKind.OUTSIDE and not end.is_node_live:
            return _denied(ConnectionRule.NODE_AWAY, f"node {end.node} is not connected", end)
    if source.kind is EndpointKind.CONTAINER and source.address == destination.address:
        return _allowed(ConnectionRule.OPEN, "a container reaches itself", source)
    if source.kind is EndpointKind.CONTAINER:
        refused = _refused_by_egress(source, request, published, networks)
        if refused is not None:
            return refused
    match destination.kind:
        case EndpointKind.OUTSIDE:
            return _allowed(ConnectionRule.OPEN, f"{_egress(source)}, and no rule denies it", source)
        case EndpointKind.NODE:
            forwarded = published(destination.node, request.port, request.protocol)
            if forwarded is not None:
                return _through_published(source, forwarded, policy_of)
            return _allowed(
                ConnectionRule.OPEN,
                f"no rule denies connections to node {destination.node}; whether a program listens on port "
                f"{request.port} is up to that machine",
                destination,
            )
        case EndpointKind.SERVICE:
            return _denied(
                ConnectionRule.NOT_READY, f"{destination.name} has no copy that is ready", destination
            )
        case EndpointKind.CONTAINER:
            return _to_container(request, policy_of)


def _refused_by_egress(
    source: NetworkEndpoint,
    request: ConnectionRequest,
    published: Callable[[str, int, Protocol], PublishedPort | None],
    networks: ReservedNetworks,
) -> ConnectionVerdict | None:
    """None: the node of the source lets it pass."""
    destination = request.destination
    target = destination.name
    is_outside = destination.kind is EndpointKind.OUTSIDE
    if is_outside and _is_in(destination.address, networks.metadata):
        return _denied(
            ConnectionRule.METADATA,
            f"{destination.address} is link-local, or of a metadata service: closed to all containers",
            source,
        )
    is_private = is_outside and _is_in(destination.address, networks.private)
    if source.is_guest and (not is_outside or is_private):
        return _denied(
            ConnectionRule.GUEST, f"{source.name} is isolated, and reaches public addresses only", source
        )
    if source.egress is Egress.NONE:
        return _denied(ConnectionRule.EGRESS, f"{_egress(source)}: it connects to nothing", source)
    is_container = destination.kind is EndpointKind.CONTAINER
    if source.egress is Egress.MESH and not is_container:
        return _denied(ConnectionRule.EGRESS, f"{_egress(source)}, and {target} is not in it", source)
    if source.egress is Egress.INTERNET:
        if is_private:
            return _denied(
                ConnectionRule.EGRESS, f"{_egress(source)}, and {target} is a private address", source
            )
        if destination.kind is EndpointKind.NODE:
            if source.node != destination.node:
                return _denied(
                    ConnectionRule.EGRESS,
                    f"{_egress(source)}, and {target} is open to it at public addresses only; connect to the "
                    "container or the service itself",
                    source,
                )
            if published(destination.node, request.port, request.protocol) is None:
                return _denied(
                    ConnectionRule.EGRESS, f"{_egress(source)}, and {target} is closed to that", source
                )
    return None


def _to_container(
    request: ConnectionRequest, policy_of: Callable[[Namespace], NamespacePolicy]
) -> ConnectionVerdict:
    source, destination, port = request.source, request.destination, request.port
    if destination.is_guest:
        return _denied(
            ConnectionRule.GUEST, f"{destination.name} is isolated: nobody connects to it", destination
        )
    if source.kind is EndpointKind.OUTSIDE:
        for mapping in destination.ports:
            if (mapping.destination, mapping.protocol) == (port, request.protocol):
                return _allowed(
                    ConnectionRule.PUBLISHED,
                    f"port {port} of {destination.name} is published as port {mapping.source} of node "
                    f"{destination.node}",
                    destination,
                )
        return _denied(
            ConnectionRule.NOT_PUBLISHED,
            f"port {port}/{request.protocol} of {destination.name} is not published, and its address is "
            "reachable in this cloud only",
            destination,
        )
    if source.kind is EndpointKind.NODE:
        if destination.ingress is Ingress.NODE and source.node != destination.node:
            return _denied(
                ConnectionRule.FUNCTION, f"only node {destination.node} calls {destination.name}", destination
            )
        return _allowed(ConnectionRule.OPEN, "nodes reach every container", destination)
    if destination.ingress is Ingress.NODE:
        return _denied(
            ConnectionRule.FUNCTION, f"only node {destination.node} calls {destination.name}", destination
        )
    return _into_namespace(source, destination, policy_of)


def _through_published(
    source: NetworkEndpoint,
    published: PublishedPort,
    policy_of: Callable[[Namespace], NamespacePolicy],
) -> ConnectionVerdict:
    target, mapping = published.container, published.mapping
    name = f"port {mapping.source} of node {target.node} is port {mapping.destination} of {target.name}"
    if source.kind is EndpointKind.CONTAINER and source.node == target.node:
        verdict = _into_namespace(source, target, policy_of)
        if not verdict.is_allowed:
            return msgspec.structs.replace(verdict, reason=f"{name}; {verdict.reason}")
    return _allowed(ConnectionRule.PUBLISHED, name, target)


def _into_namespace(
    source: NetworkEndpoint,
    destination: NetworkEndpoint,
    policy_of: Callable[[Namespace], NamespacePolicy],
) -> ConnectionVerdict:
    if destination.ingress is not Ingress.NAMESPACE:
        return _allowed(
            ConnectionRule.OPEN,
            f"{_egress(source)}, and namespace {destination.namespace} is not isolated",
            destination,
        )
    allowed = policy_of(destination.namespace).allow_from
    if source.namespace == destination.namespace:
        return _allowed(
            ConnectionRule.NAMESPACE_POLICY, f"both are in namespace {source.namespace}", destination
        )
    if source.namespace in allowed:
        return _allowed(
            ConnectionRule.NAMESPACE_POLICY,
            f"namespace {destination.namespace} is isolated, and allows connections from {source.namespace}",
            destination,
        )
    others = f"itself and {', '.join(allowed)}" if allowed else "itself"
    return _denied(
        ConnectionRule.NAMESPACE_POLICY,
        f"namespace {destination.namespace} is isolated, and allows connections from {others} only",
        destination,
    )


def _egress(source: NetworkEndpoint) -> str:
    if source.kind is not EndpointKind.CONTAINER:
        return f"{source.name} has no egress rule"
    return f"the egress of {source.name} is {source.egress}"


def _is_in(address: str, networks: tuple[Network, ...]) -> bool:
    return bool(address) and any(ip_address(address) in network for network in networks)


def _allowed(rule: ConnectionRule, reason: str, at: NetworkEndpoint) -> ConnectionVerdict:
    return ConnectionVerdict(True, rule, reason, at.node)


def _denied(rule: ConnectionRule, reason: str, at: NetworkEndpoint) -> ConnectionVerdict:
    return ConnectionVerdict(False, rule, reason, at.node)
