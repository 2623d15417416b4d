"""Access rules: which roles may use which route and which RPC, and which of them callers that are bound to
namespaces may use, in one table.

A route or RPC without a row is refused for all; a test checks that everything served has one. Rows are
written out one by one, so that a reader sees at a glance what a role can do. The scope of a row follows from
its noun: `_HTTP_SCOPES` has one line for each first segment of a path, `_GRPC_SCOPES` for each service, and
without one this module cannot be imported.
"""

from __future__ import annotations

import enum

import msgspec

from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role


class AccessScope(enum.StrEnum):
    """What a route or RPC is about, which decides on callers that are bound to namespaces."""

    CLUSTER = "cluster"  # the whole cloud or a whole node: bound callers are refused
    NAMESPACED = "namespaced"  # objects of a namespace, which is checked before the handler runs
    OWN = "own"  # the caller itself, or what anybody may know


class AccessRule(msgspec.Struct, frozen=True):
    """Who may pass. An admin may do whatever people may do, but is no node."""

    roles: frozenset[Role] = frozenset()
    anybody: bool = False
    buyers: bool = (
        False  # also a buyer that signs the request with its own key, which the route itself verifies
    )
    owners: bool = False  # of those keys also ones that may not buy any more: it is about their own deals
    addresses: bool = False  # also a buyer that is identified by its address, on the listener for those
    scope: AccessScope = AccessScope.CLUSTER
    session: bool = False  # for a session of the web console alone, by its cookie


OPEN_RULE = AccessRule(anybody=True, scope=AccessScope.OWN)

# PUT and POST routes that are served also when the disk is full: they add nothing, or free space.
ON_FULL_DISK = frozenset(
    {
        "POST /backup/",
        "POST /backup/s3",
        "POST /certificate/{serial}/revoke",
        "POST /job/{name}/cancel",
        "POST /namespace/{namespace}/job/{name}/cancel",
        "POST /schedule/{name}/pause",
        "POST /namespace/{namespace}/schedule/{name}/pause",
        "POST /node/{id}/cordon",
        "POST /node/{id}/uncordon",
        "POST /node/{id}/drain",
        "POST /invoke/{function}",
        "POST /web/{function}",
        "PUT /web/{function}",
        "POST /delete",
        "POST /api/listflavors",
        "POST /api/listflavours/selector",
        "POST /api/contracts/{id}/release",
        "POST /market/borrowed/{id}/release",
        "POST /market/contracts/{id}/reclaim",
    }
)


def _only(*roles: Role) -> AccessRule:
    return AccessRule(roles=frozenset(roles))


def _buyers_and(*roles: Role, owners: bool = False) -> AccessRule:
    return AccessRule(roles=frozenset(roles), buyers=True, owners=owners)


_ADMIN = _only(Role.ADMIN)
_READERS = _only(Role.VIEWER, Role.DEPLOYER, Role.ADMIN)
_USERS = _only(Role.VIEWER, Role.DEPLOYER, Role.INVOKER, Role.ADMIN)
_DEPLOYERS = _only(Role.DEPLOYER, Role.ADMIN)
_INVOKERS = _only(Role.INVOKER, Role.DEPLOYER, Role.ADMIN)
_NODES = _only(Role.NODE)
_OFFER_READERS = _buyers_and(Role.VIEWER, Role.DEPLOYER, Role.ADMIN)  # read offers
_BUYERS = _buyers_and(Role.DEPLOYER, Role.ADMIN)  # reserve
_OWNERS = _buyers_and(Role.DEPLOYER, Role.ADMIN, owners=True)  # change holds and contracts of their own
_OWN_READERS = _buyers_and(Role.VIEWER, Role.DEPLOYER, Role.ADMIN, owners=True)
_RUNNERS = _only(Role.NODE, Role.ADMIN)  # a node only if it takes calls, which the handler sees to
_REPORTERS = _only(Role.NODE, Role.ADMIN)  # a node only for itself, which the handlers see to

HTTP_RULES: dict[str, AccessRule] = {
    "GET /healthz": OPEN_RULE,
    "GET /readyz": OPEN_RULE,
    "GET /metrics": _READERS,
    "GET /metrics/targets": _READERS,
    "GET /openapi.json": OPEN_RULE,
    "GET /about": _USERS,
    "POST /console/link": _USERS,
    "GET /events": _READERS,
    "GET /token/": _ADMIN,
    "POST /token/": _ADMIN,
    "DELETE /token/{id}": _ADMIN,
    "POST /token-key/rotate": _ADMIN,
    "POST /backup/": _ADMIN,
    "POST /backup/s3": _ADMIN,
    "GET /backup/": _ADMIN,
    "GET /certificate/": _ADMIN,
    "POST /certificate/": _ADMIN,
    "POST /certificate/{serial}/revoke": _ADMIN,
    "GET /certificate/authority": _ADMIN,
    "POST /certificate/authority/rotate": _ADMIN,
    "POST /certificate/authority/finish": _ADMIN,
    "GET /ca.pem": OPEN_RULE,
    "GET /join": _only(Role.NODE, Role.ADMIN),  # also without TLS, on loopback, where no certificate is shown
    "POST /join": OPEN_RULE,  # the join token in the body is the proof
    "GET /namespace/": _READERS,
    "GET /namespace/{namespace}": _READERS,
    "PUT /namespace/": _ADMIN,
    "PATCH /namespace/{namespace}": _ADMIN,
    "DELETE /namespace/{namespace}": _ADMIN,
    "GET /namespace/{namespace}/explain": _READERS,
    "GET /instance/": _READERS,
    "GET /instance/{id}": _READERS,
    "PUT /instance/": _DEPLOYERS,
    "POST /instance/": _DEPLOYERS,
    "PATCH /instance/{id}": _DEPLOYERS,
    "DELETE /instance/{id}": _DEPLOYERS,
    "GET /instance/{id}/logs": _READERS,
    "GET /instance/{id}/exec": _DEPLOYERS,
    "GET /instance/{id}/events": _READERS,
    "GET /instance/{id}/explain": _READERS,
    "GET /workload/": _READERS,
    "GET /workload/{id}": _READERS,
    "PUT /workload/": _DEPLOYERS,
    "POST /workload/": _DEPLOYERS,
    "PATCH /workload/{id}": _DEPLOYERS,
    "DELETE /workload/{id}": _DEPLOYERS,
    "GET /service/": _READERS,
    "GET /service/{name}": _READERS,
    "PUT /service/": _DEPLOYERS,
    "PATCH /service/{name}": _DEPLOYERS,
    "DELETE /service/{name}": _DEPLOYERS,
    "POST /service/{name}/plan": _DEPLOYERS,
    "POST /service/{name}/scale": _DEPLOYERS,
    "POST /service/{name}/rollback": _DEPLOYERS,
    "POST /service/{name}/promote": _DEPLOYERS,
    "POST /service/{name}/pause": _DEPLOYERS,
    "POST /service/{name}/resume": _DEPLOYERS,
    "GET /service/{name}/revisions": _READERS,
    "GET /service/{name}/events": _READERS,
    "GET /job/": _READERS,
    "GET /job/{name}": _READERS,
    "PUT /job/": _DEPLOYERS,
    "DELETE /job/{name}": _DEPLOYERS,
    "POST /job/{name}/cancel": _DEPLOYERS,
    "GET /job/{name}/tries": _READERS,
    "GET /route/": _READERS,
    "GET /route/{name}": _READERS,
    "PUT /route/": _DEPLOYERS,
    "PATCH /route/{name}": _DEPLOYERS,
    "DELETE /route/{name}": _DEPLOYERS,
    "GET /volume/": _READERS,
    "GET /volume/{name}": _READERS,
    "PUT /volume/": _DEPLOYERS,
    "DELETE /volume/{name}": _DEPLOYERS,
    "POST /volume/{name}/snapshot": _DEPLOYERS,
    "GET /volume/{name}/snapshots": _READERS,
    "POST /volume/{name}/restore": _DEPLOYERS,
    "POST /volume/{name}/move": _DEPLOYERS,
    "GET /snapshot/": _READERS,
    "GET /snapshot/{name}": _READERS,
    "DELETE /snapshot/{name}": _DEPLOYERS,
    "GET /volume-operation/": _READERS,
    "GET /volume-operation/{id}": _READERS,
    "POST /volume-operation/{id}/cancel": _DEPLOYERS,
    "GET /schedule/": _READERS,
    "GET /schedule/{name}": _READERS,
    "PUT /schedule/": _DEPLOYERS,
    "PATCH /schedule/{name}": _DEPLOYERS,
    "DELETE /schedule/{name}": _DEPLOYERS,
    "POST /schedule/{name}/run": _DEPLOYERS,
    "POST /schedule/{name}/pause": _DEPLOYERS,
    "POST /schedule/{name}/resume": _DEPLOYERS,
    # Nobody reads the value of a secret: there is no route for it.
    "GET /secret/": _READERS,
    "GET /secret/{name}": _READERS,
    "PUT /secret/{name}": _DEPLOYERS,
    "DELETE /secret/{name}": _DEPLOYERS,
    "GET /config/": _READERS,
    "GET /config/{name}": _READERS,
    "GET /config/{name}/data": _READERS,
    "PUT /config/{name}": _DEPLOYERS,
    "DELETE /config/{name}": _DEPLOYERS,
    "GET /registry/": _READERS,
    "PUT /registry/{name}": _DEPLOYERS,
    "DELETE /registry/{name}": _DEPLOYERS,
    "POST /secret-key/rotate": _ADMIN,
    "GET /mesh/": _READERS,
    # Nor a private key.
    "GET /tls/": _READERS,
    "GET /tls/{name}": _READERS,
    "PUT /tls/{name}": _DEPLOYERS,
    "POST /tls/": _DEPLOYERS,
    "DELETE /tls/{name}": _DEPLOYERS,
    "GET /alert/": _READERS,
    "GET /alert/{name}": _READERS,
    "PUT /alert/{name}": _ADMIN,
    "DELETE /alert/{name}": _ADMIN,
    "POST /alert/{name}/test": _ADMIN,
    "GET /node/": _READERS,
    "GET /node/{id}": _READERS,
    "GET /node/{id}/cells": _READERS,
    "GET /node/{id}/metrics": _READERS,
    "PATCH /node/{id}": _ADMIN,
    "DELETE /node/{id}": _ADMIN,
    "POST /node/{id}/cordon": _ADMIN,
    "POST /node/{id}/uncordon": _ADMIN,
    "POST /node/{id}/drain": _ADMIN,
    "POST /invoke/{function}": _INVOKERS,
    "GET /poll/{id}": _INVOKERS,
    # HEAD with GET. On the socket for routes a public route needs no role, and others these.
    "GET /web/{function}": _INVOKERS,
    "POST /web/{function}": _INVOKERS,
    "PUT /web/{function}": _INVOKERS,
    "PATCH /web/{function}": _INVOKERS,
    "DELETE /web/{function}": _INVOKERS,
    "OPTIONS /web/{function}": _INVOKERS,
    "POST /create": _DEPLOYERS,
    "POST /update": _DEPLOYERS,
    "POST /delete": _DEPLOYERS,
    "POST /prewarm": _DEPLOYERS,
    "GET /status": _READERS,
    "GET /neighbours": _READERS,
    "GET /function-calls": _READERS,
    "GET /function": _READERS,
    "GET /functions": _READERS,
    "GET /function/{name}": _READERS,
    "GET /function/{name}/logs": _READERS,
    "GET /api/listflavors": _OFFER_READERS,
    "POST /api/listflavors": _OFFER_READERS,
    "GET /api/flavors/{id}": _OFFER_READERS,
    "POST /api/flavors": _ADMIN,
    "DELETE /api/flavors/{id}": _ADMIN,
    "POST /api/reserveflavor": _BUYERS,
    "POST /api/purchaseflavor": _OWNERS,
    "GET /api/reservations": _OWN_READERS,
    "GET /api/reservations/{id}": _OWN_READERS,
    "GET /api/transactions/{id}": _OWN_READERS,
    "DELETE /api/reservations/{id}": _OWNERS,
    "GET /api/contracts": _OWN_READERS,
    "GET /api/contracts/{id}": _OWN_READERS,
    "POST /api/contracts/{id}/release": _OWNERS,
    "POST /api/contracts/{id}/renew": _OWNERS,
    "POST /api/contracts/{id}/signature": _OWNERS,
    "GET /api/contracts/{id}/door": OPEN_RULE,  # the contract's credential is the proof
    "GET /api/contracts/{id}/tunnel": OPEN_RULE,
    "GET /api/subscribe": _OFFER_READERS,
    "GET /api/rear.xsd": _OFFER_READERS,
    "GET /api/listflavours": _OFFER_READERS,
    "POST /api/listflavours/selector": _OFFER_READERS,
    "POST /api/reserveflavour/{flavour_id}": _BUYERS,
    "POST /api/purchaseflavour/{transaction_id}": _OWNERS,
    "GET /api/v2/flavors": _OFFER_READERS,
    "GET /api/v2/flavors/{kind}": _OFFER_READERS,
    "POST /api/v2/reservations": _BUYERS,
    "POST /api/v2/transactions/{id}/purchase": _OWNERS,
    "GET /market": _READERS,
    "GET /market/peers": _READERS,
    "GET /market/peers/{name}": _READERS,
    "PUT /market/peers/{name}": _ADMIN,
    "DELETE /market/peers/{name}": _ADMIN,
    "GET /market/offers": _READERS,
    "POST /market/buy": _ADMIN,
    "GET /market/borrowed": _READERS,
    "GET /market/borrowed/{id}": _READERS,
    "POST /market/borrowed/{id}/release": _ADMIN,
    "POST /market/borrowed/{id}/renew": _ADMIN,
    "POST /market/flavors": _ADMIN,
    "PATCH /market/flavors/{id}": _ADMIN,
    "DELETE /market/flavors/{id}": _ADMIN,
    "GET /market/ledger": _READERS,
    "GET /market/holds": _READERS,
    "GET /market/contracts": _READERS,
    "GET /market/contracts/{id}": _READERS,
    "POST /market/contracts/{id}/reclaim": _ADMIN,
    "GET /market/buyers": _READERS,
    "PUT /market/buyers/{id}": _ADMIN,
    "DELETE /market/buyers/{id}": _ADMIN,
}
# On the listener for buyers without credentials: these, and nothing else.
_ADDRESSES = AccessRule(addresses=True)
PLAIN: dict[str, AccessRule] = {
    "GET /api/listflavours": _ADDRESSES,
    "POST /api/listflavours/selector": _ADDRESSES,
    "POST /api/reserveflavour/{flavour_id}": _ADDRESSES,
    "POST /api/purchaseflavour/{transaction_id}": _ADDRESSES,
    "GET /api/v2/flavors": _ADDRESSES,
    "GET /api/v2/flavors/{kind}": _ADDRESSES,
    "POST /api/v2/reservations": _ADDRESSES,
    "POST /api/v2/transactions/{id}/purchase": _ADDRESSES,
}
# The scope of everything below a first segment. Objects of a namespace are also served below
# `/namespace/{namespace}/`, to the same callers, where the path ends with a slash here.
_HTTP_SCOPES: dict[str, AccessScope] = {
    "/healthz": AccessScope.OWN,
    "/readyz": AccessScope.OWN,
    "/openapi.json": AccessScope.OWN,
    "/about": AccessScope.OWN,
    "/console": AccessScope.OWN,
    "/ca.pem": AccessScope.OWN,
    "/join": AccessScope.CLUSTER,
    "/metrics": AccessScope.CLUSTER,
    "/token": AccessScope.CLUSTER,
    "/token-key": AccessScope.CLUSTER,
    "/backup": AccessScope.CLUSTER,
    "/certificate": AccessScope.CLUSTER,
    "/node": AccessScope.CLUSTER,
    "/mesh": AccessScope.CLUSTER,
    "/alert": AccessScope.CLUSTER,
    "/status": AccessScope.CLUSTER,
    "/neighbours": AccessScope.CLUSTER,
    "/function-calls": AccessScope.CLUSTER,
    "/api": AccessScope.CLUSTER,
    "/market": AccessScope.CLUSTER,
    "/namespace": AccessScope.OWN,  # the list, which shows a bound caller its own
    "/explain": AccessScope.NAMESPACED,
    "/events": AccessScope.NAMESPACED,
    "/instance/": AccessScope.NAMESPACED,
    "/workload/": AccessScope.NAMESPACED,
    "/service/": AccessScope.NAMESPACED,
    "/job/": AccessScope.NAMESPACED,
    "/schedule/": AccessScope.NAMESPACED,
    "/secret/": AccessScope.NAMESPACED,
    "/config/": AccessScope.NAMESPACED,
    "/registry/": AccessScope.NAMESPACED,
    "/secret-key": AccessScope.CLUSTER,
    "/tls/": AccessScope.NAMESPACED,
    "/route/": AccessScope.NAMESPACED,
    "/volume/": AccessScope.NAMESPACED,
    "/snapshot/": AccessScope.NAMESPACED,
    "/volume-operation/": AccessScope.NAMESPACED,
    "/invoke": AccessScope.NAMESPACED,
    "/poll": AccessScope.NAMESPACED,
    "/web": AccessScope.NAMESPACED,
    "/create": AccessScope.NAMESPACED,
    "/update": AccessScope.NAMESPACED,
    "/delete": AccessScope.NAMESPACED,
    "/prewarm": AccessScope.NAMESPACED,
    "/function": AccessScope.NAMESPACED,
    "/functions": AccessScope.NAMESPACED,
}
_GRPC_SCOPES: dict[str, AccessScope] = {
    "grpc.health.v1.Health": AccessScope.OWN,
    "grpc.reflection.v1.ServerReflection": AccessScope.OWN,
    "grpc.reflection.v1alpha.ServerReflection": AccessScope.OWN,
    "aurae.discovery.v0.DiscoveryService": AccessScope.OWN,
    "skerry.identity.v1.IdentityService": AccessScope.CLUSTER,
    "skerry.nodes.v1.NodeService": AccessScope.CLUSTER,
    "skerry.nodes.v1.DepartureService": AccessScope.CLUSTER,
    "skerry.nodes.v1.ServerService": AccessScope.CLUSTER,
    "skerry.nodes.v1.CodeService": AccessScope.CLUSTER,
    "skerry.cells.v1.CellService": AccessScope.CLUSTER,
    "skerry.containers.v1.ImageService": AccessScope.CLUSTER,
    "skerry.containers.v1.ContainerService": AccessScope.CLUSTER,
    "runtime.CellService": AccessScope.CLUSTER,
    "observe.Observe": AccessScope.CLUSTER,
    "aurae.cells.v0.CellService": AccessScope.CLUSTER,
    "aurae.observe.v0.ObserveService": AccessScope.CLUSTER,
    "SchedulerService": AccessScope.CLUSTER,
    "NodeService": AccessScope.CLUSTER,
    "scheduler.SchedulerService": AccessScope.CLUSTER,
    "scheduler.NodeService": AccessScope.CLUSTER,
    "InstanceService": AccessScope.NAMESPACED,
    "scheduler.InstanceService": AccessScope.NAMESPACED,
}


def _http_scope(path: str) -> AccessScope:
    """The scope of a route; the noun of `/namespace/{namespace}/job/` is `job`."""
    if path == _IN_NAMESPACE:
        return AccessScope.NAMESPACED
    noun = "/" + path.removeprefix(_IN_NAMESPACE).split("/")[1]
    return _HTTP_SCOPES[f"{noun}/" if f"{noun}/" in _HTTP_SCOPES else noun]


_IN_NAMESPACE = "/namespace/{namespace}"
HTTP_RULES |= {
    name.replace(" /", f" {_IN_NAMESPACE}/"): row
    for name, row in HTTP_RULES.items()
    if f"/{name.split('/')[1]}/" in _HTTP_SCOPES
}
HTTP_RULES = {
    name: msgspec.structs.replace(row, scope=_http_scope(name.partition(" ")[2]))
    for name, row in HTTP_RULES.items()
}

GRPC_RULES: dict[str, AccessRule] = {
    "/grpc.health.v1.Health/Check": OPEN_RULE,
    "/grpc.health.v1.Health/Watch": OPEN_RULE,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _READERS,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _READERS,
    "/skerry.identity.v1.IdentityService/Renew": _NODES,
    "/skerry.identity.v1.IdentityService/IssueEdge": _NODES,
    "/skerry.nodes.v1.NodeService/Session": _NODES,
    "/skerry.nodes.v1.NodeService/Tunnel": _NODES,
    "/skerry.nodes.v1.DepartureService/Drain": _NODES,  # of the calling node
    "/skerry.nodes.v1.DepartureService/Leave": _NODES,
    "/skerry.nodes.v1.ServerService/Reach": _ADMIN,  # which each server is
    "/skerry.nodes.v1.CodeService/Fetch": _RUNNERS,
    "/skerry.cells.v1.CellService/Allocate": _DEPLOYERS,
    "/skerry.cells.v1.CellService/Free": _DEPLOYERS,
    "/skerry.cells.v1.CellService/Start": _DEPLOYERS,
    "/skerry.cells.v1.CellService/Stop": _DEPLOYERS,
    "/skerry.cells.v1.CellService/List": _READERS,
    "/skerry.cells.v1.CellService/Wait": _READERS,
    "/skerry.cells.v1.CellService/Logs": _READERS,
    "/skerry.cells.v1.CellService/Usage": _READERS,
    "/skerry.cells.v1.CellService/Node": _READERS,
    "/skerry.containers.v1.ImageService/Pull": _DEPLOYERS,
    "/skerry.containers.v1.ImageService/List": _READERS,
    "/skerry.containers.v1.ImageService/Remove": _DEPLOYERS,
    "/skerry.containers.v1.ImageService/Collect": _DEPLOYERS,
    "/skerry.containers.v1.ContainerService/Create": _DEPLOYERS,
    "/skerry.containers.v1.ContainerService/Run": _DEPLOYERS,
    "/skerry.containers.v1.ContainerService/Start": _DEPLOYERS,
    "/skerry.containers.v1.ContainerService/Stop": _DEPLOYERS,
    "/skerry.containers.v1.ContainerService/Remove": _DEPLOYERS,
    "/skerry.containers.v1.ContainerService/List": _READERS,
    "/skerry.containers.v1.ContainerService/Get": _READERS,
    "/skerry.containers.v1.ContainerService/Wait": _READERS,
    "/skerry.containers.v1.ContainerService/Logs": _READERS,
    "/skerry.containers.v1.ContainerService/Stats": _READERS,
    "/skerry.containers.v1.ContainerService/Exec": _DEPLOYERS,
    "/runtime.CellService/Allocate": _DEPLOYERS,
    "/runtime.CellService/Free": _DEPLOYERS,
    "/runtime.CellService/Start": _DEPLOYERS,
    "/runtime.CellService/Stop": _DEPLOYERS,
    "/observe.Observe/GetAuraeDaemonLogStream": _READERS,
    "/observe.Observe/GetSubProcessStream": _READERS,
    "/aurae.cells.v0.CellService/Allocate": _DEPLOYERS,
    "/aurae.cells.v0.CellService/Free": _DEPLOYERS,
    "/aurae.cells.v0.CellService/Start": _DEPLOYERS,
    "/aurae.cells.v0.CellService/Stop": _DEPLOYERS,
    "/aurae.cells.v0.CellService/List": _READERS,
    "/aurae.observe.v0.ObserveService/GetAuraeDaemonLogStream": _READERS,
    "/aurae.observe.v0.ObserveService/GetSubProcessStream": _READERS,
    "/aurae.observe.v0.ObserveService/GetPosixSignalsStream": _READERS,
    "/aurae.discovery.v0.DiscoveryService/Discover": _USERS,
    "/SchedulerService/setNodeStatus": _REPORTERS,
    "/SchedulerService/setInstanceStatus": _REPORTERS,
    "/NodeService/Status": _REPORTERS,
    "/NodeService/Register": _REPORTERS,
    "/NodeService/Unregister": _REPORTERS,
    "/InstanceService/Create": _DEPLOYERS,
    "/InstanceService/Start": _DEPLOYERS,
    "/InstanceService/Stop": _DEPLOYERS,
    "/InstanceService/Destroy": _DEPLOYERS,
    "/scheduler.SchedulerService/setNodeStatus": _REPORTERS,
    "/scheduler.SchedulerService/setInstanceStatus": _REPORTERS,
    "/scheduler.NodeService/Status": _REPORTERS,
    "/scheduler.NodeService/Register": _REPORTERS,
    "/scheduler.NodeService/Unregister": _REPORTERS,
    "/scheduler.InstanceService/Create": _DEPLOYERS,
    "/scheduler.InstanceService/Start": _DEPLOYERS,
    "/scheduler.InstanceService/Stop": _DEPLOYERS,
    "/scheduler.InstanceService/Destroy": _DEPLOYERS,
}
GRPC_RULES = {
    name: msgspec.structs.replace(row, scope=_GRPC_SCOPES[name.split("/")[1]])
    for name, row in GRPC_RULES.items()
}


def authorize(row: AccessRule, caller: Caller) -> None:
    """Return if `caller` may pass; otherwise raise, with what would help."""
    if caller.namespaces is not None and row.scope is AccessScope.CLUSTER:
        raise errors.Forbidden(
            f"{caller.name} is bound to {' and '.join(caller.namespaces)}, and this concerns the whole "
            "cloud; ask an admin, or for a token that is not bound to namespaces"
        )
    if row.anybody or caller.role in row.roles or (row.addresses and caller.origin is AuthMethod.ADDRESS):
        return
    if caller.role is None:
        raise errors.Unauthenticated(
            "this needs to know who is calling: send `Authorization: Bearer TOKEN` (an admin makes one with "
            "`skerry token create`), or, unless identity.local_trust is off, call on this machine's loopback "
            "or unix socket as the user who runs Skerry, not through a proxy"
        )
    if caller.role is Role.ADMIN and row.roles != _NODES.roles:
        return
    needed = " or ".join(sorted(row.roles))
    remedy = "" if row.roles == _NODES.roles else "; ask an admin for a token with that role"
    raise errors.Forbidden(f"{caller.name} has the role {caller.role}; this needs {needed}{remedy}")
