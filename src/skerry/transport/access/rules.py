"""Which roles may use which route and which RPC: the one table, and the one place that asks it.

A route or RPC without a row does not exist for anybody; a test holds that everything served has one. Rows are
written out one by one, so that a reader sees at a glance what a role can do.
"""

from __future__ import annotations

import msgspec

from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role


class AccessRule(msgspec.Struct, frozen=True):
    """Who may pass. An admin may do whatever people may do, but is no node."""

    roles: frozenset[Role] = frozenset()
    anybody: bool = False
    buyers: bool = False  # also whoever signs the request with its own key, which the route itself checks
    owners: bool = False  # of those keys also ones that may not buy any more: it is about their own deals
    addresses: bool = False  # also who is known by its address alone, on the listener that has such callers


OPEN_RULE = AccessRule(anybody=True)

# Of PUT and POST, what is served also when the disk is full: it adds nothing, or makes room.
ON_FULL_DISK = frozenset(
    {
        "POST /certificate/{serial}/revoke",
        "POST /job/{name}/cancel",
        "POST /namespace/{namespace}/job/{name}/cancel",
        "POST /schedule/{name}/pause",
        "POST /namespace/{namespace}/schedule/{name}/pause",
        "POST /node/{id}/cordon",
        "POST /node/{id}/uncordon",
        "POST /node/{id}/drain",
        "POST /invoke/{function}",
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
_PEOPLE = _only(Role.VIEWER, Role.DEPLOYER, Role.INVOKER, Role.ADMIN)
_DEPLOYERS = _only(Role.DEPLOYER, Role.ADMIN)
_INVOKERS = _only(Role.INVOKER, Role.DEPLOYER, Role.ADMIN)
_NODES = _only(Role.NODE)
_SHOPPERS = _buyers_and(Role.VIEWER, Role.DEPLOYER, Role.ADMIN)  # look at offers
_BUYERS = _buyers_and(Role.DEPLOYER, Role.ADMIN)  # reserve
_OWNERS = _buyers_and(Role.DEPLOYER, Role.ADMIN, owners=True)  # change holds and contracts of their own
_OWN_READERS = _buyers_and(Role.VIEWER, Role.DEPLOYER, Role.ADMIN, owners=True)
_RUNNERS = _only(Role.NODE, Role.ADMIN)  # a node only if it takes calls, which the handler sees to
_REPORTERS = _only(Role.NODE, Role.ADMIN)  # a node only for itself, which the handlers see to

HTTP_RULES: dict[str, AccessRule] = {
    "GET /healthz": OPEN_RULE,
    "GET /readyz": OPEN_RULE,
    "GET /metrics": _READERS,
    "GET /openapi.json": OPEN_RULE,
    "GET /about": _PEOPLE,
    "GET /events": _READERS,
    "GET /token/": _ADMIN,
    "POST /token/": _ADMIN,
    "DELETE /token/{id}": _ADMIN,
    "GET /certificate/": _ADMIN,
    "POST /certificate/{serial}/revoke": _ADMIN,
    "GET /ca.pem": OPEN_RULE,
    "GET /join": _only(Role.NODE, Role.ADMIN),  # also without TLS, on loopback, where no certificate is shown
    "POST /join": OPEN_RULE,  # the join token in the body is the proof
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
    "GET /schedule/": _READERS,
    "GET /schedule/{name}": _READERS,
    "PUT /schedule/": _DEPLOYERS,
    "PATCH /schedule/{name}": _DEPLOYERS,
    "DELETE /schedule/{name}": _DEPLOYERS,
    "POST /schedule/{name}/run": _DEPLOYERS,
    "POST /schedule/{name}/pause": _DEPLOYERS,
    "POST /schedule/{name}/resume": _DEPLOYERS,
    "GET /node/": _READERS,
    "GET /node/{id}": _READERS,
    "PATCH /node/{id}": _ADMIN,
    "DELETE /node/{id}": _ADMIN,
    "POST /node/{id}/cordon": _ADMIN,
    "POST /node/{id}/uncordon": _ADMIN,
    "POST /node/{id}/drain": _ADMIN,
    "POST /invoke/{function}": _INVOKERS,
    "GET /poll/{id}": _INVOKERS,
    "POST /create": _DEPLOYERS,
    "POST /update": _DEPLOYERS,
    "POST /delete": _DEPLOYERS,
    "POST /prewarm": _DEPLOYERS,
    "GET /status": _READERS,
    "GET /neighbours": _READERS,
    "GET /function": _READERS,
    "GET /functions": _READERS,
    "GET /function/{name}": _READERS,
    "GET /function/{name}/logs": _READERS,
    "GET /api/listflavors": _SHOPPERS,
    "POST /api/listflavors": _SHOPPERS,
    "GET /api/flavors/{id}": _SHOPPERS,
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
    "GET /api/subscribe": _SHOPPERS,
    "GET /api/rear.xsd": _SHOPPERS,
    "GET /api/listflavours": _SHOPPERS,
    "POST /api/listflavours/selector": _SHOPPERS,
    "POST /api/reserveflavour/{flavour_id}": _BUYERS,
    "POST /api/purchaseflavour/{transaction_id}": _OWNERS,
    "GET /api/v2/flavors": _SHOPPERS,
    "GET /api/v2/flavors/{kind}": _SHOPPERS,
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
# What lives in a namespace is also served there, to the same callers.
HTTP_RULES |= {
    name.replace(" /", " /namespace/{namespace}/"): row
    for name, row in HTTP_RULES.items()
    if name.partition(" ")[2].startswith(("/instance/", "/workload/", "/service/", "/job/", "/schedule/"))
}

GRPC_RULES: dict[str, AccessRule] = {
    "/grpc.health.v1.Health/Check": OPEN_RULE,
    "/grpc.health.v1.Health/Watch": OPEN_RULE,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _READERS,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _READERS,
    "/skerry.identity.v1.IdentityService/Renew": _NODES,
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
    "/aurae.discovery.v0.DiscoveryService/Discover": _PEOPLE,
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


def authorize(row: AccessRule, caller: Caller) -> None:
    """Return if `caller` may pass; otherwise raise, with what would help."""
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
