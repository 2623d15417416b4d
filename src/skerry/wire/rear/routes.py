"""All endpoints of REAR, and how each is served."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.model.settings import Settings
from skerry.transport.access import rules
from skerry.transport.http.dispatcher import HttpRoute
from skerry.transport.http.endpoints import Endpoint
from skerry.transport.http.runner import build_route
from skerry.wire.rear import contract_tunnels, flavors, reservations, routes_v1, routes_v2, subscriptions
from skerry.wire.rear.context import RearContext
from skerry.wire.rear.dialect import DIALECT, TUNNEL_DIALECT

# The routes of FLUIDOS's buyer, which has no credentials: `access.PLAIN` has their rows.
PLAIN: tuple[Endpoint, ...] = (
    routes_v1.largest,
    routes_v1.select,
    routes_v1.reserve,
    routes_v1.purchase,
    routes_v2.list_flavors,
    routes_v2.select,
    routes_v2.reserve,
    routes_v2.purchase,
)

ENDPOINTS: tuple[Endpoint, ...] = (
    flavors.list_flavors,
    flavors.select,
    flavors.show,
    flavors.publish,
    flavors.withdraw,
    reservations.reserve,
    reservations.purchase,
    reservations.list_reservations,
    reservations.show_reservation,
    reservations.show_transaction,
    reservations.cancel,
    reservations.list_contracts,
    reservations.show_contract,
    reservations.release,
    reservations.renew,
    reservations.sign,
    contract_tunnels.door,
    contract_tunnels.tunnel,
    subscriptions.subscribe,
    subscriptions.schema,
    *PLAIN,
)


def build_plain_routes(rear: RearContext, settings: Settings) -> Iterator[HttpRoute]:
    """The routes for buyers without credentials."""
    for declared in PLAIN:
        yield build_route(declared, DIALECT, rear, settings.http, row=rules.PLAIN[declared.name])


def build_routes(rear: RearContext | None, settings: Settings) -> Iterator[HttpRoute]:
    for declared in ENDPOINTS:
        dialect = TUNNEL_DIALECT if declared in contract_tunnels.ENDPOINTS else DIALECT
        yield build_route(declared, dialect, rear, settings.http)
