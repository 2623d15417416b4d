"""All kinds of network objects, and their encoding: for node sessions, and for the file of a node."""

from __future__ import annotations

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.authority_bundle import AuthorityBundle, TrustedAuthorities
from skerry.model.mesh import MeshLinks, MeshNode, MeshPeer
from skerry.model.network_objects import (
    MAX_OBJECT_BYTES,
    InstanceAddress,
    NetworkObject,
    NodeLocation,
    ServiceAddress,
    ServiceSubnet,
    UnknownObject,
)
from skerry.model.network_policies import IsolatedNamespace, JobAddress
from skerry.model.offline_tokens import RevokedToken, TokenKey
from skerry.model.routes import RouteLoad, RouteObject, ServiceWake
from skerry.model.tls_certificates import HttpChallenge, RouteCertificate

KINDS: dict[str, type[NetworkObject]] = {
    each.kind: each
    for each in (
        NodeLocation,
        ServiceAddress,
        InstanceAddress,
        ServiceSubnet,
        IsolatedNamespace,
        MeshNode,
        MeshLinks,
        MeshPeer,
        RouteCertificate,
        HttpChallenge,
        TokenKey,
        RevokedToken,
        JobAddress,
        RouteObject,
        RouteLoad,
        ServiceWake,
        AuthorityBundle,
        TrustedAuthorities,
    )
}


def encode(value: NetworkObject) -> bytes:
    """The content of an object, without its kind."""
    return json_codec.encode(value)


def decode(kind: str, key: str, data: bytes) -> NetworkObject:
    """The object of this kind; `UnknownObject` for a kind from a later version. Raises `Invalid`."""
    if (known := KINDS.get(kind)) is None:
        return UnknownObject(kind, key)
    if len(data) > MAX_OBJECT_BYTES:
        raise errors.TooLarge(f"a network object has at most {MAX_OBJECT_BYTES} bytes")
    try:
        value: NetworkObject = json_codec.decode(data, known)
    except json_codec.InvalidJson as error:
        raise errors.Invalid(f"the network object {kind} {key[:80]!r} cannot be read: {error}") from error
    if value.key != key:
        raise errors.Invalid(f"the network object {kind} {key[:80]!r} holds another key")
    return value
