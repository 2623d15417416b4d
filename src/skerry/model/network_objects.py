"""Network objects: what nodes are told of the network of their cloud, and what they report of it.

One feed of the node session carries all of them (`NetworkUpdate`, `NetworkReportBatch`), each under its kind
and key: locations of nodes, addresses of services and instances, peers of the mesh, policies, routes. A kind
is a struct, here or beside this module; `skerry.model.network_kinds` lists all. A side ignores kinds that it
does not know. Nodes keep the last state on disk and work with it while no server can be reached, so nothing
of it is a private key: those are requested as secrets. Routes have salted digests of their credentials.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import msgspec

from skerry.model.ids import InstanceId, Namespace, NodeId, ServiceId
from skerry.model.ports import Protocol

MAX_OBJECT_BYTES = 1024 * 1024
MAX_REPORTED_OBJECTS = 1000  # in one message


class NetworkKey(NamedTuple):
    """The name of an object; there is one object of it at a time."""

    kind: str
    key: str


class NetworkObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """The base of all kinds."""

    kind: ClassVar[str] = ""

    @property
    def key(self) -> str:
        """Its name among the objects of its kind."""
        raise NotImplementedError

    @property
    def network_key(self) -> NetworkKey:
        return NetworkKey(self.kind, self.key)


class NodeLocation(NetworkObject, frozen=True, omit_defaults=True):
    """A node of the cloud: its name, its area, and the subnets of its containers."""

    kind: ClassVar[str] = "node"
    node: NodeId
    name: str
    area: str = ""
    subnets: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.node


class EndpointState(enum.StrEnum):
    """Whether a copy takes connections."""

    READY = "ready"
    DRAINING = "draining"  # keeps those that it has, and gets no new ones
    NOT_READY = "not-ready"


class ServiceEndpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """One copy of a service, or one instance."""

    instance: InstanceId
    node: NodeId
    address: str
    state: EndpointState = EndpointState.READY
    index: int | None = None  # among the copies of its service
    name: str = ""  # of the instance, as people see it
    address6: str = ""


class ServicePort(msgspec.Struct, frozen=True, omit_defaults=True):
    """A port of a service's address, and the port of its copies."""

    port: int
    target: int = 0  # 0: the same
    protocol: Protocol = Protocol.TCP
    name: str = ""  # as in SRV records

    @property
    def target_port(self) -> int:
        return self.target or self.port


class ServiceAddress(NetworkObject, frozen=True, omit_defaults=True):
    """A service with its virtual address and all of its copies. Without `ports`, every port is forwarded as
    it is."""

    kind: ClassVar[str] = "service"
    service: ServiceId
    name: str
    namespace: Namespace
    address: str = ""  # empty: it has none yet
    ports: tuple[ServicePort, ...] = ()
    affinity_s: int = 0  # a client keeps its copy for so long; 0: every connection is balanced
    endpoints: tuple[ServiceEndpoint, ...] = ()
    address6: str = ""

    @property
    def key(self) -> str:
        return self.service


class ServiceSubnet(NetworkObject, frozen=True, omit_defaults=True):
    """The range of virtual addresses: what has one of them and is no service is refused."""

    kind: ClassVar[str] = "service-subnet"
    subnet: str

    @property
    def key(self) -> str:
        return self.subnet


class InstanceAddress(NetworkObject, frozen=True, omit_defaults=True):
    """An instance that belongs to no service."""

    kind: ClassVar[str] = "instance"
    namespace: Namespace
    endpoint: ServiceEndpoint

    @property
    def key(self) -> str:
        return self.endpoint.instance


class UnknownObject(NetworkObject, frozen=True):
    """Of a kind that this version does not know."""

    type: str
    name: str

    @property
    def key(self) -> str:
        return self.name

    @property
    def network_key(self) -> NetworkKey:
        return NetworkKey(self.type, self.name)


# Of one node, or of all nodes (None); an object that is None was removed.
ObjectChange = Callable[[NodeId | None, NetworkKey, NetworkObject | None], None]
