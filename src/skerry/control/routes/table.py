"""The records of routes, and of the domains that they are in. Requests of people (`registry`) write them."""

from __future__ import annotations

from skerry.control.events.log import EventLog
from skerry.control.named_table import NamedTable
from skerry.model.routes import DomainRoutes, Route
from skerry.store.protocol import Put, Store
from skerry.store.tables.table import Record, Table, json_of

RouteRecord = Record[Route]
DOMAIN_PREFIX = "route-domain/"


class RouteTable(NamedTable[Route]):
    """The routes of one cloud."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "route", Route)
        # Read before every write, and by nobody else, so it is not watched.
        self.domains: Table[DomainRoutes] = Table(store, DOMAIN_PREFIX, json_of(DomainRoutes))

    def event(self, events: EventLog, kind: str, route: Route, *, actor: str) -> Put:
        """The event `route.KIND`."""
        return events.put(
            f"route.{kind}",
            self.subject(route),
            actor=actor,
            request_id=route.request_id,
            name=route.name,
            namespace=route.namespace,
            place=str(route.spec.place),
            to="" if route.spec.target is None else str(route.spec.target),
        )
