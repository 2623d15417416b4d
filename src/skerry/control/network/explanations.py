"""Explains connections between what is in this cloud, by names: which rule allows or denies them, and where.

Finds the instances, services and nodes that are meant, with their policies as this server knows them; the
decision is `skerry.model.connectivity`. What a caller may not see does not exist for it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, NamedTuple

from skerry.control.instance_index import InstanceTable
from skerry.control.named_table import NamedTable
from skerry.control.namespaces.policies import RecordedPolicies
from skerry.control.nodes.registry import NodeRegistry
from skerry.model import address_ranges, connectivity, errors, ids
from skerry.model.connectivity import (
    ConnectionRequest,
    ConnectionVerdict,
    EndpointKind,
    NetworkEndpoint,
    PublishedPort,
    ReservedNetworks,
)
from skerry.model.ids import Namespace, NodeId
from skerry.model.ipv6_addresses import ipv4_of
from skerry.model.namespace_scope import NamespaceScope
from skerry.model.network import Ingress
from skerry.model.nodes import Liveness, Node
from skerry.model.ports import Protocol
from skerry.model.services import Service
from skerry.model.statuses import TERMINAL
from skerry.model.workloads import Instance, OwnerKind, WorkloadKind

INTERNET: Final = "internet"
MAX_COPIES = 20  # of a service, on either side
_FORMS = (
    "write [NAMESPACE/]NAME of an instance or a service, instance/NAME, service/NAME, node/NAME, an IP "
    f"address, or {INTERNET}"
)


class ExplainedConnection(NamedTuple):
    """One connection: of one copy to one other."""

    source: NetworkEndpoint
    destination: NetworkEndpoint
    verdict: ConnectionVerdict


class ConnectionExplainer:
    """Explains connections with what is in the tables now."""

    def __init__(
        self,
        instances: InstanceTable,
        nodes: NodeRegistry,
        policies: RecordedPolicies,
        services: NamedTable[Service],
        subnets: IPv4Network,
        service_subnet: IPv4Network,
    ) -> None:
        """`subnets`: those of all nodes of this cloud; `service_subnet`: virtual addresses."""
        self._instances = instances
        self._nodes = nodes
        self._policies = policies
        self._services = services
        self._subnets = subnets
        self._service_subnet = service_subnet
        self._networks = ReservedNetworks(
            (
                *map(IPv4Network, address_ranges.METADATA),
                *map(IPv6Network, address_ranges.METADATA6),
            ),
            (
                *map(IPv4Network, address_ranges.PRIVATE),
                *map(IPv6Network, address_ranges.PRIVATE6),
                subnets,
            ),
        )

    def explain(
        self,
        ends: tuple[str, str],
        port: int,
        protocol: Protocol,
        *,
        namespace: Namespace,
        scope: NamespaceScope,
    ) -> list[ExplainedConnection]:
        """Every connection from a copy of the first of `ends` to one of the second, whose names are in
        `namespace` unless they name another. Raises Invalid, NotFound."""
        sources, destinations = (
            self._find(text, field, namespace, scope)
            for text, field in zip(ends, ("from", "to"), strict=True)
        )
        return [
            ExplainedConnection(
                source, destination, self._decide(ConnectionRequest(source, destination, port, protocol))
            )
            for source in sources
            for destination in destinations
        ]

    def _decide(self, request: ConnectionRequest) -> ConnectionVerdict:
        return connectivity.explain(request, self._policies.of, self._published, self._networks)

    def _find(
        self, text: str, field: str, namespace: Namespace, scope: NamespaceScope
    ) -> Sequence[NetworkEndpoint]:
        """What a name stands for: of a service its ready copies, or itself if it has none."""
        if text == INTERNET:
            return [NetworkEndpoint(INTERNET)]
        kind, _, rest = text.partition("/")
        if kind == "node" and rest:
            return [self._node(rest, scope)]
        if (address := _address(text)) is not None:
            return self._at(address, scope)
        name = rest if kind in ("instance", "service") and rest else text
        owner, separator, plain = name.partition("/")
        if separator:
            namespace, name = scope.check(owner), plain
        try:
            ids.check_id(name, field)
        except errors.Invalid:
            raise errors.Invalid(f"{text[:80]!r} names nothing in a network; {_FORMS}", field=field) from None
        if kind != "service" and (instance := self._instance(name, namespace)) is not None:
            return [self._container(instance)]
        if kind != "instance" and (service := self._services.by_name(name, namespace)) is not None:
            return self._copies(service.value)
        raise errors.NotFound(
            f"there is no instance and no service {name!r} in namespace {namespace}; {_FORMS}"
        )

    def _instance(self, name: str, namespace: Namespace) -> Instance | None:
        """By its id or its name; of several with one name, one that runs."""
        found = [
            record.value
            for record in self._instances.index.after(None, namespace)
            if name in (record.value.id, record.value.spec.name)
            and record.value.observed.status not in TERMINAL
        ]
        return max(found, key=lambda each: (bool(each.ip), each.created_at), default=None)

    def _copies(self, service: Service) -> Sequence[NetworkEndpoint]:
        records = self._instances.index.of_owner(OwnerKind.SERVICE, service.id)
        ready = sorted((each.value for each in records if each.value.is_ready), key=lambda each: each.id)
        if not ready:
            return [NetworkEndpoint(f"service {service.namespace}/{service.name}", EndpointKind.SERVICE)]
        return [self._container(each) for each in ready[:MAX_COPIES]]

    def _container(self, instance: Instance) -> NetworkEndpoint:
        node = self._known(instance.node)
        is_isolated = self._policies.of(instance.namespace).is_isolated
        return NetworkEndpoint(
            f"{instance.namespace}/{instance.spec.name}",
            EndpointKind.CONTAINER,
            instance.ip,
            "" if instance.node is None else node.name if node is not None else instance.node,
            instance.namespace,
            Ingress.NAMESPACE if is_isolated else Ingress.ALL,
            self._policies.egress(instance.namespace, instance.spec.egress),
            instance.spec.ports,
            is_guest=(node is not None and not node.has_network) or instance.spec.kind is WorkloadKind.CELL,
            is_node_live=node is None or self._is_live(node),
        )

    def _node(self, name: str, scope: NamespaceScope) -> NetworkEndpoint:
        if scope.is_bound:
            raise errors.NotFound(f"there is no node {name[:80]!r} for a caller that is bound to namespaces")
        node = self._nodes.get(name)
        return NetworkEndpoint(
            f"node {node.name}", EndpointKind.NODE, node=node.name, is_node_live=self._is_live(node)
        )

    def _at(self, address: IPv4Address | IPv6Address, scope: NamespaceScope) -> Sequence[NetworkEndpoint]:
        """What has an address: a container, or a service, whose copies are meant. The rules are the same for
        the IPv4 and the IPv6 address of one."""
        if isinstance(address, IPv6Address):
            if (address4 := ipv4_of(address)) is None:
                return [NetworkEndpoint(str(address), EndpointKind.OUTSIDE, str(address))]
            address = address4
        text = str(address)
        for service in self._services.values():
            if service.address == text and scope.admits(service.namespace):
                return self._copies(service)
        if address in self._service_subnet:
            raise errors.NotFound(
                f"no service with the address {address} is known; `skerry service describe` shows them"
            )
        for record in self._instances.index:
            if record.value.ip == text and record.value.observed.status not in TERMINAL:
                if scope.admits(record.value.namespace):
                    return [self._container(record.value)]
                break
        if address in self._subnets:
            raise errors.NotFound(
                f"no container at {address} is known; `skerry get instances` shows their addresses"
            )
        return [NetworkEndpoint(text, EndpointKind.OUTSIDE, text)]

    def _published(self, node: str, port: int, protocol: Protocol) -> PublishedPort | None:
        for record in self._instances.index.on_node(self._nodes.get(node).id):
            for mapping in record.value.spec.ports:
                if (mapping.source, mapping.protocol) == (port, protocol) and record.value.ip:
                    return PublishedPort(self._container(record.value), mapping)
        return None

    def _known(self, node: NodeId | None) -> Node | None:
        return None if node is None or self._nodes.condition(node) is None else self._nodes.get(node)

    def _is_live(self, node: Node) -> bool:
        return node.is_foreign or self._nodes.liveness(node.id) is not Liveness.LOST


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
