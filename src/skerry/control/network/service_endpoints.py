"""Services with their addresses and copies, and single instances, for all nodes. A source of
`skerry.control.network.feed`.

A copy is ready as it is for its service: it runs, is in service and has passed its checks. One that is out of
service, or is to be stopped, is draining while it still runs. A copy on a silent node is not ready, unless
there is no other: the node may be cut off from the server and still serve. A node that this server has not
heard of since it started is silent when its time is over. Copies on nodes that are not of
this cloud's network (foreign ones, and borrowed ones that are not in the mesh) are left out. A change of one
copy sends one object; changes of a service with very many copies are sent together, at most half a second
later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address
from typing import Final

from msgspec.structs import replace

from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.nodes.conditions import NodeConditions
from skerry.control.services.copies import owner_of
from skerry.control.services.tables import ServiceRecord, ServiceTables
from skerry.kit.callbacks import CallbackList
from skerry.model.ids import MARKET_NAMESPACE, InstanceId, NodeId, ServiceId
from skerry.model.ipv6_addresses import ipv6_of
from skerry.model.network_objects import (
    EndpointState,
    InstanceAddress,
    NetworkKey,
    NetworkObject,
    ObjectChange,
    ServiceAddress,
    ServiceEndpoint,
    ServiceSubnet,
)
from skerry.model.nodes import Liveness
from skerry.model.services import Service
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, OwnerKind, WorkloadKind

# Of one service, the ready ones first: an object has a limited size.
MAX_ENDPOINTS: Final = 2000
# The object of a service has all of its copies: many changes of a large one would cost the square of them.
_SMALL: Final = 32
_PAUSE_PER_COPY_S, _LONGEST_PAUSE_S = 0.001, 0.5
_AT_ITS_ADDRESS: Final = frozenset((InstanceStatus.STARTING, InstanceStatus.RUNNING, InstanceStatus.STOPPING))


# None: the node is not of this cloud's network.
NodeLiveness = Callable[[NodeId], Liveness | None]


class ServiceAddressSource:
    """The addresses of all services and single instances."""

    def __init__(
        self, tables: ServiceTables, instance_table: InstanceTable, nodes: NodeConditions, subnet: str
    ) -> None:
        self._services = tables.services
        self._instances = instance_table
        self._nodes = nodes
        self._subnet = ServiceSubnet(subnet)
        self._sent: dict[NetworkKey, NetworkObject] = {}
        self._refreshed_at: dict[ServiceId, float] = {}  # of large services
        self._delayed: dict[ServiceId, asyncio.TimerHandle] = {}
        self._node_states: dict[NodeId, Liveness | None] = {}
        self._listeners: CallbackList[[NodeId | None, NetworkKey, NetworkObject | None]] = CallbackList()
        self._services.listen(self._service_changed)
        instance_table.listen(self._instance_changed)
        nodes.listen(self._node_changed)

    def objects(self, node: NodeId) -> Iterable[NetworkObject]:
        return () if self._liveness(node) is None else (self._subnet, *self._sent.values())

    def listen(self, changed: ObjectChange) -> None:
        self._listeners.add(changed)

    async def ready(self) -> None:
        await self._services.ready()
        await self._instances.ready()
        await self._nodes.ready()

    def _service_changed(self, before: ServiceRecord | None, after: ServiceRecord | None) -> None:
        if after is not None:
            self._refresh_service(after.value)
        if before is not None and (after is None or after.value.id != before.value.id):
            self._refreshed_at.pop(before.value.id, None)
            self._put(NetworkKey(ServiceAddress.kind, before.value.id), None)

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        record = after or before
        if record is None:
            return
        instance = record.value
        if instance.owner is None:
            self._refresh_instance(instance.id, None if after is None else instance)
        elif instance.owner.kind is OwnerKind.SERVICE:
            service = self._services.by_id(instance.owner.id)
            if service is not None:
                self._refresh_service(service.value)

    def _node_changed(self, node: NodeId) -> None:
        liveness = self._liveness(node)
        if self._node_states.get(node) is liveness:
            return
        if liveness is None:
            del self._node_states[node]
        else:
            self._node_states[node] = liveness
        services: dict[str, None] = {}
        for record in self._instances.index.on_node(node):
            owner = record.value.owner
            if owner is not None and owner.kind is OwnerKind.SERVICE:
                services[owner.id] = None
            else:
                self._instance_changed(None, record)
        for id in services:
            if (service := self._services.by_id(id)) is not None:
                self._refresh_service(service.value)

    def _refresh_service(self, service: Service) -> None:
        if service.namespace == MARKET_NAMESPACE or service.id in self._delayed:
            return
        copies = self._instances.index.of_owner(OwnerKind.SERVICE, service.id)
        if len(copies) > _SMALL:
            loop = asyncio.get_running_loop()
            pause_s = min(_LONGEST_PAUSE_S, len(copies) * _PAUSE_PER_COPY_S)
            due = self._refreshed_at.get(service.id, -pause_s) + pause_s
            if due > loop.time():
                self._delayed[service.id] = loop.call_at(due, self._refresh_later, service.id)
                return
            self._refreshed_at[service.id] = loop.time()
        key = NetworkKey(ServiceAddress.kind, service.id)
        self._put(key, service_address(service, [copy.value for copy in copies], self._liveness))

    def _refresh_later(self, id: ServiceId) -> None:
        del self._delayed[id]
        if (service := self._services.by_id(id)) is not None:
            self._refresh_service(service.value)

    def _refresh_instance(self, id: InstanceId, instance: Instance | None) -> None:
        key = NetworkKey(InstanceAddress.kind, id)
        self._put(key, None if instance is None else instance_address(instance, self._liveness))

    def _put(self, key: NetworkKey, value: NetworkObject | None) -> None:
        if self._sent.get(key) == value:
            return
        if value is None:
            del self._sent[key]
        else:
            self._sent[key] = value
        self._listeners.notify(None, key, value)

    def _liveness(self, node: NodeId) -> Liveness | None:
        condition = self._nodes.condition(node)
        if condition is None or not condition.has_network:
            return None
        # When a server has started, nodes connect one after the other; those that still may have not left.
        return Liveness.LIVE if condition.is_awaited else condition.liveness


def service_address(service: Service, copies: Sequence[Instance], liveness: NodeLiveness) -> ServiceAddress:
    """What nodes are told of a service."""
    endpoints = [endpoint_of(copy, owner_of(copy).index) for copy in copies if has_address(copy, liveness)]
    is_any_live = any(
        each.state is EndpointState.READY and liveness(each.node) is Liveness.LIVE for each in endpoints
    )

    def seen(endpoint: ServiceEndpoint) -> ServiceEndpoint:
        condition = liveness(endpoint.node)
        is_usable = condition is Liveness.LIVE or (condition is Liveness.SUSPECT and not is_any_live)
        return endpoint if is_usable else _unready(endpoint)

    shown = sorted(map(seen, endpoints), key=_by_index)
    if len(shown) > MAX_ENDPOINTS:
        shown = sorted(sorted(shown, key=_ready_first)[:MAX_ENDPOINTS], key=_by_index)
    return ServiceAddress(
        service.id,
        service.name,
        service.namespace,
        service.address,
        service.ports,
        service.affinity_s,
        tuple(shown),
        _virtual_ipv6(service, shown),
    )


def _virtual_ipv6(service: Service, copies: Sequence[ServiceEndpoint]) -> str:
    """The IPv6 address of a service: it has one if all of its copies do, so that clients of both kinds are
    balanced over the same ones."""
    if not service.address or not copies or not all(each.address6 for each in copies):
        return ""
    return str(ipv6_of(IPv4Address(service.address)))


def instance_address(instance: Instance, liveness: NodeLiveness) -> InstanceAddress | None:
    """What nodes are told of an instance that belongs to no service; None: nothing."""
    if (
        instance.owner is not None
        or instance.namespace == MARKET_NAMESPACE
        or instance.spec.kind is not WorkloadKind.CONTAINER
        or not has_address(instance, liveness)
    ):
        return None
    endpoint = endpoint_of(instance)
    if liveness(endpoint.node) is Liveness.LOST:
        endpoint = _unready(endpoint)
    return InstanceAddress(instance.namespace, endpoint)


def has_address(instance: Instance, liveness: NodeLiveness) -> bool:
    """True if the instance may answer at its address, in this cloud's network."""
    if instance.node is None or not instance.ip or instance.observed.status not in _AT_ITS_ADDRESS:
        return False
    return liveness(instance.node) is not None


def endpoint_of(instance: Instance, index: int | None = None) -> ServiceEndpoint:
    assert instance.node is not None, "it has an address"
    return ServiceEndpoint(
        instance.id, instance.node, instance.ip, _state(instance), index, instance.spec.name, instance.ip6
    )


def _state(instance: Instance) -> EndpointState:
    if instance.is_ready:
        return EndpointState.READY
    is_leaving = (
        instance.retiring_at is not None
        or instance.leaving is not None
        or instance.desired is not DesiredStatus.RUNNING
    )
    has_clients = instance.observed.status is InstanceStatus.RUNNING and instance.observed.has_passed
    return EndpointState.DRAINING if is_leaving and has_clients else EndpointState.NOT_READY


def _unready(endpoint: ServiceEndpoint) -> ServiceEndpoint:
    return replace(endpoint, state=EndpointState.NOT_READY)


def _by_index(endpoint: ServiceEndpoint) -> tuple[int, InstanceId]:
    return endpoint.index or 0, endpoint.instance


def _ready_first(endpoint: ServiceEndpoint) -> tuple[bool, int]:
    return endpoint.state is not EndpointState.READY, endpoint.index or 0
