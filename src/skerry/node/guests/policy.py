"""Limits of a guest: its cell, the containers of its instances, its session config, its network. Pure.

The buyer of a leased cell is untrusted, and chooses ids, specs and times freely. The node chooses the names
of its containers, so that none collides; a spec that would reach outside the cell raises `Invalid`. So does a
network object with anything that is not what it should be: parts of it become commands.
"""

from __future__ import annotations

import hashlib
import math
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from msgspec.structs import replace

from skerry.model import errors, ids
from skerry.model.cells import Cell, CellLimits, CellOwner, own_name, weight_of
from skerry.model.containers import GUEST_PREFIX, ContainerSpec
from skerry.model.ids import InstanceId
from skerry.model.mesh import (
    MAX_ENDPOINTS,
    MeshEncryption,
    MeshPeer,
    check_public_key,
    format_endpoint,
    parse_endpoint,
)
from skerry.model.network_objects import (
    InstanceAddress,
    NetworkObject,
    NodeLocation,
    ServiceAddress,
    ServiceEndpoint,
    ServicePort,
    ServiceSubnet,
)
from skerry.model.network_policies import IsolatedNamespace, JobAddress
from skerry.model.node_messages import SessionConfig
from skerry.model.resources import Resources
from skerry.model.workloads import InstanceSpec, UserNamespaceMode, WorkloadKind
from skerry.node.agent.instances.container_specs import SpecTranslation, container_spec
from skerry.node.guest_networks.networks import GuestNode

_HASH_DIGITS = 40
_LONGEST_S = 86_400.0
_GUEST_KINDS = (
    MeshPeer,
    NodeLocation,
    ServiceSubnet,
    ServiceAddress,
    InstanceAddress,
    JobAddress,
    IsolatedNamespace,
)


def parent_cell(spec: ContainerSpec, *, pids: int) -> Cell:
    """The leased cell: exactly the resources that were bought, and `pids` processes. Raises Invalid."""
    if not (spec.resources.cpu and spec.resources.memory):
        raise errors.Invalid("a leased cell must have cpu and memory limits", field="room")
    limits = CellLimits(
        cpu_weight=weight_of(spec.resources.cpu),
        cpu_quota=spec.resources.cpu,
        memory=spec.resources.memory,
        pids=pids,
    )
    return Cell(own_name(spec.name), limits, isolates_processes=False, owner=CellOwner.CONTRACT)


class LeasedCapacity(NamedTuple):
    """What was bought with a leased cell: resources, and devices of the node by their names."""

    resources: Resources
    devices: tuple[str, ...] = ()


def translation(cell: str, leased: LeasedCapacity) -> SpecTranslation:
    """How instances of the guest in the leased `cell` become containers."""
    return SpecTranslation(partial(guest_name, cell), partial(guest_spec, cell, leased))


def guest_name(cell: str, instance: InstanceId) -> str:
    """`g-` and a hash of both. Names of leased cells contain no '/', so different pairs never hash the same
    text."""
    digest = hashlib.sha256(f"{cell}/{instance}".encode()).hexdigest()
    return f"{GUEST_PREFIX}{digest[:_HASH_DIGITS]}"


def guest_spec(cell: str, leased: LeasedCapacity, instance: InstanceId, spec: InstanceSpec) -> ContainerSpec:
    """Raises Invalid if a guest may not have that."""
    resources = leased.resources
    if spec.kind is WorkloadKind.CELL:
        raise errors.Invalid("a borrowed node cannot lease cells", field="kind")
    if spec.ports:
        raise errors.Invalid(
            "instances on a borrowed node cannot publish ports; run it on a node of your own", field="ports"
        )
    if spec.userns is not UserNamespaceMode.PRIVATE:
        raise errors.Invalid(
            "instances on a borrowed node always have a user namespace; leave userns out", field="userns"
        )
    if spec.secrets:
        raise errors.Invalid(
            "instances on a borrowed node have no secrets and configs, which its provider could read; run it "
            "on a node of your own",
            field="secrets",
        )
    if spec.mounts:
        raise errors.Invalid(
            "instances on a borrowed node have no volumes, and no other mounts; run it on a node of your own",
            field="volumes",
        )
    if shortfall := resources.shortfall(spec.resources):
        raise errors.Invalid(f"the borrowed node is too small: it {shortfall}", field="room")
    for request in spec.devices:
        if str(request) not in leased.devices:
            raise errors.Invalid(f"device {request} is not of this contract", field="devices")
    base = container_spec(instance, spec)
    return replace(
        base,
        name=guest_name(cell, instance),
        inside=cell,
        cpu_limit=base.cpu_limit and min(base.cpu_limit, resources.cpu),
        is_isolated=True,
        # The kernel limits all of them together to the cell's cpu, memory and disk.
        resources=replace(base.resources, disk=base.resources.disk or resources.disk),
        shared_disk=resources.disk,
        read_only=base.read_only or resources.disk == 0,
    )


def clamp_session_config(config: SessionConfig) -> SessionConfig:
    """`config`, with periods no shorter than a control plane of this node's own would use."""
    base_s = _within(config.restart_base_s, 0.1)
    return replace(
        config,
        report_s=_within(config.report_s, 0.5),
        restart_base_s=base_s,
        restart_cap_s=max(base_s, _within(config.restart_cap_s, 1.0)),
        restart_reset_s=_within(config.restart_reset_s, 1.0),
        silence_s=_within(config.silence_s, 1.0) if config.silence_s else 0.0,
    )


def guest_node(config: SessionConfig) -> GuestNode:
    """What the buyer calls it, for its network. Raises Invalid."""
    ids.check_id(config.node, "node")
    _check_networks((config.subnet,))
    return GuestNode(config.node, config.subnet)


def is_for_guests(value: NetworkObject) -> bool:
    """True if the network of a guest uses objects of this kind: no routes, certificates or tokens."""
    return isinstance(value, _GUEST_KINDS)


def check_object(value: NetworkObject) -> None:
    """Raise Invalid unless every part of it is what it should be."""
    match value:
        case MeshPeer():
            _check_peer(value)
        case NodeLocation():
            ids.check_id(value.node, "node")
            ids.check_display_text(value.name, "name")
            ids.check_display_text(value.area or "-", "area")
            _check_networks(value.subnets)
        case ServiceSubnet():
            _check_networks((value.subnet,))
        case ServiceAddress():
            ids.check_id(value.service, "service")
            ids.check_display_text(value.name, "name")
            ids.check_namespace(value.namespace)
            _check_addresses(value.address)
            for port in value.ports:
                _check_port(port)
            if not 0 <= value.affinity_s <= _LONGEST_S:
                raise errors.Invalid("too long an affinity", field="affinity_s")
            for endpoint in value.endpoints:
                _check_endpoint(endpoint)
        case InstanceAddress():
            ids.check_namespace(value.namespace)
            _check_endpoint(value.endpoint)
        case JobAddress():
            ids.check_namespace(value.namespace)
            ids.check_id(value.instance, "instance")
            ids.check_id(value.node, "node")
            _check_addresses(value.address)
        case IsolatedNamespace():
            for namespace in (value.namespace, *value.allow_from):
                ids.check_namespace(namespace)
        case _:
            raise errors.Invalid(f"a guest gets no network objects of the kind {value.kind!r}", field="kind")


def _check_peer(peer: MeshPeer) -> None:
    for node in (peer.node, *((peer.via,) if peer.via is not None else ())):
        ids.check_id(node, "node")
    ids.check_display_text(peer.name, "name")
    for key in (peer.public_key, *(each for each in (peer.next_key, peer.known_key) if each)):
        check_public_key(key)
    if len(peer.endpoints) > MAX_ENDPOINTS:
        raise errors.Invalid(f"a peer has at most {MAX_ENDPOINTS} endpoints", field="endpoints")
    for endpoint in peer.endpoints:
        if format_endpoint(*parse_endpoint(endpoint)) != endpoint or "%" in endpoint:
            raise errors.Invalid(f"{endpoint[:60]!r} is no endpoint", field="endpoints")
    _check_networks(peer.subnets)
    if peer.encryption is not MeshEncryption.WIREGUARD:
        raise errors.Invalid("the mesh of a guest is encrypted", field="encryption")


def _check_endpoint(endpoint: ServiceEndpoint) -> None:
    ids.check_id(endpoint.instance, "instance")
    ids.check_id(endpoint.node, "node")
    ids.check_display_text(endpoint.name or "-", "name")
    _check_addresses(endpoint.address)


def _check_port(port: ServicePort) -> None:
    if not (0 < port.port < 65536 and 0 <= port.target < 65536):
        raise errors.Invalid(f"{port.port} is no port", field="ports")
    ids.check_display_text(port.name or "-", "name")


def _check_networks(texts: tuple[str, ...]) -> None:
    for text in texts:
        try:
            is_network = str(IPv4Network(text)) == text
        except ValueError:
            is_network = False
        if not is_network:
            raise errors.Invalid(f"{text[:40]!r} is no IPv4 network", field="subnets")


def _check_addresses(*texts: str) -> None:
    for text in texts:
        try:
            is_address = not text or str(IPv4Address(text)) == text
        except ValueError:
            is_address = False
        if not is_address:
            raise errors.Invalid(f"{text[:40]!r} is no IPv4 address", field="address")


def _within(seconds: float, least_s: float) -> float:
    return min(max(seconds, least_s), _LONGEST_S) if math.isfinite(seconds) else _LONGEST_S
