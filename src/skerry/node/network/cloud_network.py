"""What network objects say about the rest of the cloud, as `skerry.node.network.policy_rules` needs it. Pure.

A container of another node is known by an object with its address. Only addresses of that node's subnets are
taken, so an object that is late, or wrong, admits nobody on this node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

from skerry.model.ids import Namespace, NodeId
from skerry.model.network_objects import InstanceAddress, NodeLocation, ServiceAddress
from skerry.model.network_policies import IsolatedNamespace, JobAddress
from skerry.node.network.policy_rules import CloudNetwork


def compile_cloud(
    own: Collection[IPv4Network],
    nodes: Iterable[NodeLocation],
    services: Collection[ServiceAddress],
    instances: Iterable[InstanceAddress | JobAddress],
    policies: Iterable[IsolatedNamespace],
) -> CloudNetwork:
    """`own`: the subnets of this node. Containers are of namespaces that are isolated, or allowed by one."""
    allow_from: dict[str, frozenset[str]] = {each.namespace: frozenset(each.allow_from) for each in policies}
    relevant = frozenset(allow_from).union(*allow_from.values())
    subnets = _subnets(own, nodes)
    by_network: dict[NodeId, list[IPv4Network]] = {}
    for owner, network in subnets:
        by_network.setdefault(owner, []).append(network)
    containers: dict[str, set[IPv4Address]] = {}
    for namespace, node, text in _containers(services, instances):
        if namespace not in relevant:
            continue
        address = _address(text)
        if address is not None and any(address in each for each in by_network.get(node, ())):
            containers.setdefault(namespace, set()).add(address)
    virtual = (_address(service.address) for service in services)
    return CloudNetwork(
        tuple(sorted(network for _, network in subnets)),
        frozenset(address for address in virtual if address is not None),
        allow_from,
        {namespace: frozenset(addresses) for namespace, addresses in sorted(containers.items())},
    )


def _containers(
    services: Iterable[ServiceAddress], instances: Iterable[InstanceAddress | JobAddress]
) -> Iterator[tuple[Namespace, NodeId, str]]:
    """The namespace, the node and the address of each."""
    for service in services:
        for endpoint in service.endpoints:
            yield service.namespace, endpoint.node, endpoint.address
    for instance in instances:
        container = instance.endpoint if isinstance(instance, InstanceAddress) else instance
        yield instance.namespace, container.node, container.address


def _subnets(own: Collection[IPv4Network], nodes: Iterable[NodeLocation]) -> list[tuple[NodeId, IPv4Network]]:
    """The subnets of other nodes; of those that overlap, the first: a set takes no overlaps."""
    found: list[tuple[NodeId, IPv4Network]] = []
    taken = list(own)
    for node in sorted(nodes, key=lambda each: each.node):
        for text in node.subnets:
            try:
                network = IPv4Network(text)
            except ValueError:
                continue
            if not any(network.overlaps(each) for each in taken):
                taken.append(network)
                found.append((node.node, network))
    return found


def _address(text: str) -> IPv4Address | None:
    try:
        return IPv4Address(text)
    except ValueError:
        return None
