"""Network objects for tests of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skerry.model.ids import InstanceId, Namespace, NodeId, ServiceId
from skerry.model.network_objects import (
    EndpointState,
    InstanceAddress,
    NetworkObject,
    ServiceAddress,
    ServiceEndpoint,
    ServicePort,
)
from skerry.node.network.dns.zone import Zone


def endpoint(
    address: str,
    index: int | None = None,
    *,
    name: str = "",
    state: EndpointState = EndpointState.READY,
    address6: str = "",
) -> ServiceEndpoint:
    """Its id is made of its address."""
    id = InstanceId(f"01{address.replace('.', 'X')}")
    return ServiceEndpoint(id, NodeId("n1"), address, state, index, name, address6)


def service(
    name: str,
    *endpoints: ServiceEndpoint,
    address: str = "",
    namespace: str = "shop",
    ports: Sequence[ServicePort] = (),
) -> ServiceAddress:
    return ServiceAddress(
        ServiceId(f"{namespace}-{name}"),
        name,
        Namespace(namespace),
        address,
        tuple(ports),
        endpoints=tuple(endpoints),
    )


def instance(name: str, address: str, namespace: str = "shop", **more: str) -> InstanceAddress:
    return InstanceAddress(Namespace(namespace), endpoint(address, name=name, **more))  # type: ignore[arg-type]


def keyed(*objects: NetworkObject) -> Mapping[str, NetworkObject]:
    return {each.key: each for each in objects}


def put(zone: Zone, *objects: NetworkObject) -> Zone:
    """These are all services and instances of the zone."""
    for kind in (ServiceAddress, InstanceAddress):
        zone.replace(kind, keyed(*(each for each in objects if isinstance(each, kind))))
    return zone
