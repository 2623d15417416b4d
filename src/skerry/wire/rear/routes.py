"""Every endpoint of this room, and how each is served."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.model.settings import Settings
from skerry.transport.access import rules
from skerry.transport.http.dispatcher import HttpRoute
from skerry.transport.http.endpoints import Endpoint, EndpointRunner
from skerry.wire.rear import (
    contract_tunnels,
    errors,
    flavors,
    reservations,
    routes_v1,
    routes_v2,
    subscriptions,
)
from skerry.wire.rear.context import RearContext
from skerry.wire.rear.endpoint_runner import RearEndpointRunner

# What FLUIDOS's buyer asks for, which has no credentials: `access.PLAIN` has their rows.
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


def plain(rear: RearContext, settings: Settings) -> Iterator[HttpRoute]:
    """What is served to buyers without credentials."""
    for declared in PLAIN:
        yield _target(declared, rear, settings, rules.PLAIN[declared.name])


def build_routes(rear: RearContext | None, settings: Settings) -> Iterator[HttpRoute]:
    """What is shown at a door is not who is buying, so doors are not served as the rest."""
    for declared in ENDPOINTS:
        yield _target(declared, rear, settings, rules.HTTP_RULES[declared.name])


def _target(
    declared: Endpoint, rear: RearContext | None, settings: Settings, row: rules.AccessRule
) -> HttpRoute:
    is_door = declared in contract_tunnels.ENDPOINTS
    return HttpRoute(
        method=declared.method,
        template=declared.path,
        app=EndpointRunner(declared, rear)
        if is_door
        else RearEndpointRunner(declared, rear, owners=row.owners),
        row=row,
        max_body_bytes=min(declared.max_body_bytes, settings.http.max_body_bytes),
        timeout_s=None if declared.streams else settings.http.request_timeout_s,
        is_quiet=declared.is_quiet,
        told=errors.error_response,
    )
