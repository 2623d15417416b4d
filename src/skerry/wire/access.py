"""Which roles may use which route and which RPC: the one table, and the one place that asks it.

A route or RPC without a row does not exist for anybody; a test holds that everything served has one. Rows are
written out one by one, so that a reader sees at a glance what a role can do.
"""

from __future__ import annotations

import msgspec

from skerry.model import errors
from skerry.model.identity import Caller, Role


class Access(msgspec.Struct, frozen=True):
    """Who may pass. An admin may do whatever people may do, but is no node."""

    roles: frozenset[Role] = frozenset()
    anybody: bool = False
    buyers: bool = False  # also whoever signs the request with its own key, which the route itself checks


OPEN = Access(anybody=True)


def _only(*roles: Role) -> Access:
    return Access(roles=frozenset(roles))


def _buyers_and(*roles: Role) -> Access:
    return Access(roles=frozenset(roles), buyers=True)


_ADMIN = _only(Role.ADMIN)
_READERS = _only(Role.VIEWER, Role.DEPLOYER, Role.ADMIN)
_PEOPLE = _only(Role.VIEWER, Role.DEPLOYER, Role.INVOKER, Role.ADMIN)
_DEPLOYERS = _only(Role.DEPLOYER, Role.ADMIN)
_INVOKERS = _only(Role.INVOKER, Role.DEPLOYER, Role.ADMIN)
_NODES = _only(Role.NODE)
_SHOPPERS = _buyers_and(Role.VIEWER, Role.DEPLOYER, Role.ADMIN)  # look at offers, and at what is theirs
_BUYERS = _buyers_and(Role.DEPLOYER, Role.ADMIN)
_RUNNERS = _only(Role.NODE, Role.ADMIN)  # a node only if it takes calls, which the handler sees to
_REPORTERS = _only(Role.NODE, Role.ADMIN)  # a node only for itself, which the handlers see to

HTTP: dict[str, Access] = {
    "GET /healthz": OPEN,
    "GET /readyz": OPEN,
    "GET /metrics": _READERS,
    "GET /openapi.json": OPEN,
    "GET /about": _PEOPLE,
    "GET /events": _READERS,
    "GET /token/": _ADMIN,
    "POST /token/": _ADMIN,
    "DELETE /token/{id}": _ADMIN,
    "GET /certificate/": _ADMIN,
    "POST /certificate/{serial}/revoke": _ADMIN,
    "GET /ca.pem": OPEN,
    "POST /join": OPEN,  # the join token in the body is the proof
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
    "POST /api/purchaseflavor": _BUYERS,
    "GET /api/reservations": _SHOPPERS,
    "GET /api/reservations/{id}": _SHOPPERS,
    "GET /api/transactions/{id}": _SHOPPERS,
    "DELETE /api/reservations/{id}": _BUYERS,
    "GET /api/contracts": _SHOPPERS,
    "GET /api/contracts/{id}": _SHOPPERS,
    "POST /api/contracts/{id}/release": _BUYERS,
    "POST /api/contracts/{id}/renew": _BUYERS,
    "POST /api/contracts/{id}/signature": _BUYERS,
    "GET /api/contracts/{id}/door": OPEN,  # the contract's credential is the proof
    "GET /api/contracts/{id}/tunnel": OPEN,
    "GET /api/subscribe": _SHOPPERS,
    "GET /api/rear.xsd": _SHOPPERS,
    "GET /api/listflavours": _SHOPPERS,
    "POST /api/listflavours/selector": _SHOPPERS,
    "POST /api/reserveflavour/{flavour_id}": _BUYERS,
    "POST /api/purchaseflavour/{transaction_id}": _BUYERS,
    "GET /api/v2/flavors": _SHOPPERS,
    "GET /api/v2/flavors/{kind}": _SHOPPERS,
    "POST /api/v2/reservations": _BUYERS,
    "POST /api/v2/transactions/{id}/purchase": _BUYERS,
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
    "DELETE /market/flavors/{id}": _ADMIN,
    "GET /market/ledger": _READERS,
    "GET /market/holds": _READERS,
    "GET /market/contracts": _READERS,
    "GET /market/contracts/{id}": _READERS,
    "POST /market/contracts/{id}/reclaim": _ADMIN,
}
# What lives in a namespace is also served there, to the same callers.
HTTP |= {
    name.replace(" /", " /namespace/{namespace}/"): row
    for name, row in HTTP.items()
    if name.partition(" ")[2].startswith(("/instance/", "/workload/"))
}

GRPC: dict[str, Access] = {
    "/grpc.health.v1.Health/Check": OPEN,
    "/grpc.health.v1.Health/Watch": OPEN,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": _READERS,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _READERS,
    "/skerry.identity.v1.IdentityService/Renew": _NODES,
    "/skerry.nodes.v1.NodeService/Session": _NODES,
    "/skerry.nodes.v1.NodeService/Tunnel": _NODES,
    "/skerry.nodes.v1.ServerService/Reach": _ADMIN,  # which each server is: see `skerry.daemon.credentials`
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


def allow(row: Access, caller: Caller) -> None:
    """Return if `caller` may pass; otherwise raise, with what would help."""
    if row.anybody or caller.role in row.roles:
        return
    if caller.role is None:
        raise errors.Unauthenticated(
            "this needs to know who is calling: send `Authorization: Bearer TOKEN` (an admin makes one with "
            "`skerry token create`), or call on this machine's loopback as the user who runs Skerry"
        )
    if caller.role is Role.ADMIN and row.roles != _NODES.roles:
        return
    needed = " or ".join(sorted(row.roles))
    raise errors.Forbidden(f"{caller.name} has the role {caller.role}; this needs {needed}")
