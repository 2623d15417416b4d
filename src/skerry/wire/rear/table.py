"""Every endpoint of this room, and how each is served."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.model.settings import Settings
from skerry.wire import access
from skerry.wire.http.endpoints import Endpoint, Served
from skerry.wire.http.front import Target
from skerry.wire.rear import deals, doors, offers, refusals, rest_v1, rest_v2, subscribing
from skerry.wire.rear.context import Rear
from skerry.wire.rear.serving import Spoken

ENDPOINTS: tuple[Endpoint, ...] = (
    offers.list_flavors,
    offers.select,
    offers.show,
    offers.publish,
    offers.withdraw,
    deals.reserve,
    deals.purchase,
    deals.list_reservations,
    deals.show_reservation,
    deals.show_transaction,
    deals.cancel,
    deals.list_contracts,
    deals.show_contract,
    deals.release,
    deals.renew,
    deals.sign,
    doors.door,
    doors.tunnel,
    subscribing.subscribe,
    subscribing.schema,
    rest_v1.largest,
    rest_v1.select,
    rest_v1.reserve,
    rest_v1.purchase,
    rest_v2.list_flavors,
    rest_v2.select,
    rest_v2.reserve,
    rest_v2.purchase,
)


def behind(rear: Rear | None, settings: Settings) -> Iterator[Target]:
    """What is shown at a door is not who is buying, so doors are not served as the rest."""
    for declared in ENDPOINTS:
        yield Target(
            method=declared.method,
            template=declared.path,
            app=Served(declared, rear) if declared in doors.ENDPOINTS else Spoken(declared, rear),
            row=access.HTTP[declared.name],
            max_body_bytes=min(declared.max_body_bytes, settings.http.max_body_bytes),
            timeout_s=None if declared.streams else settings.http.request_timeout_s,
            is_quiet=declared.is_quiet,
            told=refusals.told,
        )
