"""The registry of routes: it takes requests durably, and answers reads from memory.

A request is acknowledged when the store has it. Every write of a route writes the record of its domain in the
same transaction (`DomainRoutes`), so that two servers cannot give one place, or one host, to two routes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from skerry.control import idempotency
from skerry.control.events.log import EventLog
from skerry.control.idempotency import IdempotencyTable, IdempotentRequest
from skerry.control.named_table import key_of, key_of_name
from skerry.control.paging import ListPage
from skerry.control.routes import ownership
from skerry.control.routes.table import RouteRecord, RouteTable
from skerry.control.workloads.registry import check_match, check_may_create, check_space
from skerry.kit import logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.namespace_scope import ListedNamespaces
from skerry.model.routes import DomainRoutes, Route, RouteSpec, domain_of
from skerry.store.protocol import Expect, Op, Store

MAX_ROUTES = 10_000
MAX_DOMAIN_ROUTES = 1000  # of one domain, whose places are one record


class RouteRegistry:
    """The routes of one cloud."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        table: RouteTable,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        self.table = table
        self._events = events
        self._clock = clock
        self._new_id = new_id
        self._idempotency = IdempotencyTable(store, clock)

    async def create(
        self,
        name: str,
        spec: RouteSpec,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        idempotency_key: str | None = None,
    ) -> tuple[Route, bool]:
        """A route of this name, and whether it is new.

        The same name with the same spec, or the same key with the same request, returns the existing one; the
        same name with another spec, or a place or host that is taken, raises `AlreadyExists`.
        """
        check_may_create(namespace, actor)
        check_space()
        now = self._clock.now()
        route = Route(self._new_id(now), name, spec, now, namespace=namespace, request_id=logs.request_id())
        given = replace(spec, protection=None)  # its salt differs from try to try
        request = IdempotentRequest.of(idempotency_key, actor, namespace, "route", name, given)
        key = key_of(route)
        while True:
            created_id = await self._idempotency.recorded_id(request)
            existing = await self.table.read(key)
            if created_id is not None:
                if existing is None or existing.value.id != created_id:
                    raise idempotency.created_then_deleted("route", created_id)
                return existing.value, False
            if existing is not None:
                _check_same(existing.value, spec)
                return existing.value, False
            self.table.check_limit(namespace, MAX_ROUTES)
            ops, expect = await self._claim(None, route)
            puts, expect_request = await self._idempotency.put(request, route.id)
            event = self.table.event(self._events, "created", route, actor=actor)
            try:
                await self.table.commit(
                    [self.table.put(key, route), event, *ops, *puts],
                    [self.table.expect(key, None), *expect, *expect_request],
                )
            except errors.Conflict:
                continue  # somebody was quicker with the name or the domain; reading again shows which
            return route, True

    async def read(self, name_or_id: str, namespace: Namespace | None = None) -> RouteRecord:
        """The route of that name, or else of that id, in a namespace; without one, a name in the default."""
        for _ in range(2):
            record = self.table.by_name(name_or_id, namespace) or self.table.by_id(name_or_id)
            if record is not None and namespace in (None, record.value.namespace):
                return record
            await self.table.sync()  # another server may have just made it
        raise self.table.unknown(name_or_id, namespace)

    def list(
        self,
        *,
        namespace: ListedNamespaces = None,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
    ) -> ListPage[Route]:
        """Routes by age and id, of all namespaces if none is given."""
        page = self.table.list_page(namespace, limit=limit, offset=offset, cursor=cursor)
        return page.map(lambda record: record.value)

    async def change(
        self,
        name: str,
        merge: Callable[[RouteSpec], RouteSpec],
        *,
        actor: str,
        namespace: Namespace | None = None,
        if_match: int | None = None,
    ) -> Route:
        """Another spec; open connections stay with what they have."""
        check_space()
        found = (await self.read(name, namespace)).value
        while True:
            record = await self._reread(found)
            check_match(record.revision, if_match)
            before = record.value
            after = replace(before, spec=merge(before.spec))
            if after == before:
                return before
            after = replace(after, request_id=logs.request_id())
            if await self._write(record, after, "changed", actor):
                return after

    async def delete(self, name: str, *, actor: str, namespace: Namespace | None = None) -> Route:
        """Delete it; its place is free at once."""
        found = (await self.read(name, namespace)).value
        while True:
            record = await self._reread(found)
            if await self._write(record, None, "deleted", actor):
                return record.value

    async def _reread(self, found: Route) -> RouteRecord:
        record = await self.table.read(key_of(found))
        if record is None or record.value.id != found.id:
            raise self.table.unknown(found.name, found.namespace)
        return record

    async def _write(self, record: RouteRecord, after: Route | None, kind: str, actor: str) -> bool:
        """Replace or delete a record with its claim; False if it or its domain has changed meanwhile."""
        before = record.value
        key = key_of(before)
        ops, expect = await self._claim(before, after)
        event = self.table.event(self._events, kind, after or before, actor=actor)
        change = self.table.delete(key) if after is None else self.table.put(key, after)
        try:
            await self.table.commit([change, event, *ops], [self.table.expect(key, record), *expect])
        except errors.Conflict:
            return False
        return True

    async def _claim(
        self, before: Route | None, after: Route | None
    ) -> tuple[Sequence[Op], Sequence[Expect]]:
        """What writes the domains of a route that changes; raises if its place is not free."""
        domains = self.table.domains
        ops: list[Op] = []
        expect: list[Expect] = []
        for domain in {domain_of(one.spec.host) for one in (before, after) if one is not None}:
            record = await domains.read(domain)
            places = {} if record is None else dict(record.value.places)
            if before is not None:
                places.pop(key_of(before), None)
            if after is not None and domain_of(after.spec.host) == domain:
                key = key_of_name(after.name, after.namespace)
                ownership.check_place(places, key, after.spec.place, after.namespace)
                if len(places) >= MAX_DOMAIN_ROUTES:
                    raise errors.TooLarge(
                        f"there are {MAX_DOMAIN_ROUTES} routes in the domain {domain}, and no more are taken"
                    )
                places[key] = after.spec.place
            ops.append(domains.put(domain, DomainRoutes(places)) if places else domains.delete(domain))
            expect.append(domains.expect(domain, record))
        return ops, expect


def _check_same(existing: Route, spec: RouteSpec) -> None:
    if replace(existing.spec, protection=None) != replace(spec, protection=None) or (
        (existing.spec.protection is None) != (spec.protection is None)
    ):
        raise errors.AlreadyExists(
            f"route {existing.name!r} exists with another spec; change it, or choose another name"
        )
    if existing.spec.protection is not None:
        raise errors.AlreadyExists(
            f"route {existing.name!r} exists with a credential; change it to replace the credential"
        )
