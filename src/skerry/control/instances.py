"""Instances as callers see them: wishes taken durably, what is known told from memory.

A wish is acknowledged when the store has it. Nothing here waits for a node: placing is done by whichever
server leads (`skerry.control.reconciling`), the rest by nodes, whose reports come in here too. For sessions
with nodes this is where orders are read and changes are heard.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

from msgspec.structs import replace

from skerry.control import census, idempotency, listing, transitions, writing
from skerry.control.census import Known, Mirror
from skerry.control.events import EventLog, Told
from skerry.control.idempotency import Memos, Request
from skerry.control.listing import Page
from skerry.control.reporting import Outcome, Reporter
from skerry.control.standings import Standings
from skerry.control.transitions import Step
from skerry.control.workloads import Kept, Workloads, check_match, check_shared, check_size, exists_elsewhere
from skerry.control.writing import Writer
from skerry.kit import ids as fresh_ids
from skerry.kit.clock import Clock
from skerry.model import errors, ids
from skerry.model.ids import DEFAULT_NAMESPACE, InstanceId, Namespace, NodeId, WorkloadId
from skerry.model.nodes import Liveness
from skerry.model.orders import Order, Report
from skerry.model.room import Room
from skerry.model.statuses import FINAL, Desired, Status
from skerry.model.workloads import Instance, Kind, Observed, Spec
from skerry.schedule.answers import Verdict
from skerry.store.protocol import ABSENT, Expect, Store

UNREACHABLE = "node unreachable"
_MAX_DUE = 256  # changes of status that a reader may be behind


class Instances:
    """The instances of one cloud."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        *,
        mirror: Mirror,
        workloads: Workloads,
        standings: Standings,
        explain: Callable[[Instance], Sequence[Verdict]],
    ) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._mirror = mirror
        self._census = mirror.census
        self._workloads = workloads
        self._standings = standings
        self._explain = explain
        self._memos = Memos(store, clock)
        self._writer = Writer(store, events, mirror)
        self._reporter = Reporter(self._writer, mirror, clock)
        self._watches: dict[InstanceId, set[_Watch]] = {}
        mirror.listen(self._tell_watches)

    # What callers want

    async def create(
        self,
        what: Spec | str,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        id: str | None = None,
        idempotency_key: str | None = None,
    ) -> tuple[Instance, bool]:
        """An instance of a spec, or of the workload with that id or name; and whether it is new.

        The same id with the same spec or workload, or the same key with the same request, gives the one that
        is there; the same id with another raises `AlreadyExists`. Of a workload in another namespace none can
        be made (`Unprocessable`).
        """
        if isinstance(what, Spec):
            check_size(what)
        request = (
            Request.of(idempotency_key, actor, namespace, "instance", what, id) if idempotency_key else None
        )
        workload = None if isinstance(what, Spec) else await self._workloads.template(what, namespace)
        while True:
            if made := await self._memos.recall(request):
                again = await self._writer.read(made)
                if again is None:
                    raise idempotency.made_and_gone("instance", made)
                return again.value, False
            if id is not None and (there := await self._writer.read(ids.check_id(id))):
                return _same(there.value, what, workload, namespace), False
            instance = _new(
                id, what, workload, namespace, self._clock.now(), await self._first_generation(id)
            )
            key = self._mirror.records.key(instance.id)
            puts, expect = await self._memos.note(request, instance.id)
            expect.append(Expect(key, ABSENT))
            if workload is not None:
                expect.append(self._workloads.records.expect(workload))
            try:
                ops = self._writer.ops(transitions.made(instance, actor=actor))
                await self._mirror.seen(await self._store.commit([*ops, *puts], expect))
            except errors.Conflict:
                if workload is not None:
                    workload = await self._workloads.read(workload.value.id, namespace)
                continue
            return instance, True

    async def start(self, id: str, *, actor: str) -> Instance:
        """Wish it to run; returns when the wish is durable."""
        return await self._wish(id, Desired.RUNNING, actor)

    async def stop(self, id: str, *, actor: str) -> Instance:
        """Wish it to stop. It keeps its node, its room and its ports, so that it can be started again."""
        return await self._wish(id, Desired.STOPPED, actor)

    async def destroy(self, id: str, *, actor: str) -> Instance:
        """Wish it gone: DESTROYING until its node has removed it, TERMINATED if nothing is to be removed."""
        return await self._wish(id, Desired.DESTROYED, actor)

    async def change(
        self,
        id: str,
        *,
        actor: str,
        desired: Desired | None = None,
        merge: Callable[[Spec], Spec] | None = None,
        workload: str | None = None,
        if_match: int | None = None,
    ) -> Instance:
        """Another wish, another spec (made of the present one by `merge`) or another workload, at once."""
        follow = None
        if workload is not None:
            namespace = (await self._known(id)).value.namespace
            follow = await self._workloads.template(workload, namespace)

        def decide(known: Known) -> Step | None:
            check_match(known.revision, if_match)
            instance = known.value
            spec, of, version = instance.spec, instance.workload, instance.version
            if follow is not None:
                check_shared(follow.value, instance.namespace)
                spec, of, version = follow.value.spec, follow.value.id, follow.value.version
            if merge is not None:
                spec = merge(spec)
                check_size(spec)
            step = transitions.respecify(instance, spec, workload=of, version=version, actor=actor)
            if desired is None:
                return step
            return transitions.then(
                step,
                transitions.wish(
                    step.after if step else instance, desired, at=self._clock.now(), actor=actor
                ),
            )

        return await self._change(id, decide)

    # What is known

    def get(self, id: str) -> Instance:
        known = self._census.get(id)
        if known is None:
            raise writing.missing(id)
        return self._shown(known)

    async def check_in(self, namespace: Namespace, id: str) -> None:
        """Raise `NotFound` unless it is in that namespace."""
        try:
            known = await self._known(id)
        except errors.NotFound:
            raise writing.missing(id, namespace) from None
        if known.value.namespace != namespace:
            raise writing.missing(id, namespace)

    def revision(self, id: str) -> int:
        """Changes with the instance: what an ETag is made of."""
        known = self._census.get(id)
        if known is None:
            raise writing.missing(id)
        return known.revision

    def usage(self, id: str) -> Room:
        """What it used when its node last reported to this server; nothing if it did not."""
        return self._reporter.usage(InstanceId(id))

    def list(
        self,
        *,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
        kind: Kind | None = None,
        states: frozenset[Status] = frozenset(),
        node: NodeId | None = None,
        workload: WorkloadId | None = None,
        name: str | None = None,
        namespace: Namespace | None = None,
    ) -> Page[Instance]:
        """Instances by age and id; of all kinds, states, nodes, workloads, names and namespaces, if none is
        given.
        """

        kinds = frozenset(Kind) if kind is None else frozenset({kind})

        def is_wanted(known: Known) -> bool:
            one = known.value
            return (
                one.spec.kind in kinds
                and (not states or one.observed.status in states)
                and (node is None or one.node == node)
                and (workload is None or one.workload == workload)
                and (name is None or one.spec.name == name)
            )

        is_filtered = bool(kind is not None or states or node or workload or name)

        def behind(place: str | None) -> Iterator[Instance]:
            found = self._census.behind(place, namespace)
            return map(self._shown, filter(is_wanted, found) if is_filtered else found)

        total = (
            sum(map(is_wanted, self._census.behind(None, namespace)))
            if is_filtered
            else self._census.count(namespace)
        )
        return listing.cut(behind, census.place_of, total=total, limit=limit, offset=offset, cursor=cursor)

    async def events(self, id: str) -> Sequence[Told]:
        """What happened to it, as far back as events are kept; also of one that is gone."""
        told = await self._events.of(self._mirror.records.key(ids.check_id(id)))
        if not told and self._census.get(id) is None:
            raise writing.missing(id)
        return told

    def explain(self, id: str) -> Sequence[Verdict]:
        """What every node says to it."""
        return self._explain(self.get(id))

    async def watch(self, id: str) -> AsyncGenerator[Instance]:
        """The instance now and after each change; ends when it is over.

        Every status comes, in order; of several changes within one, the latest. Raises `Overloaded` for a
        reader that is too slow for that.
        """
        known = await self._known(id)
        watch = _Watch(known.value)
        watches = self._watches.setdefault(known.value.id, set())
        watches.add(watch)
        try:
            while True:
                latest = await watch.next()
                yield latest
                if latest.observed.status in FINAL:
                    return
        finally:
            watches.discard(watch)
            if not watches and self._watches.get(known.value.id) is watches:
                del self._watches[known.value.id]

    # For sessions with nodes

    def orders(self, node: NodeId) -> Sequence[Order]:
        """All that a node is to have and to do."""
        return [Order.of(known.value) for known in self._census.on_node(node)]

    async def caught_up(self) -> None:
        """Wait until what is known includes everything that was durable when this was called.

        A whole set of orders is sent only after this: a node removes what is not in it.
        """
        await self._mirror.caught_up()

    def listen(self, changed: census.Listener) -> Callable[[], None]:
        """Call `changed(before, after)` with every change from now on; the result ends that."""
        return self._mirror.listen(changed)

    async def reported(
        self, node: NodeId | None, reports: Sequence[Report], *, actor: str = ""
    ) -> Sequence[Outcome]:
        """Take what a node saw; one outcome per report, in their order.

        `node` is None if no node says so, but `actor`; generation 0 is that of the present copy.
        """
        return await self._reporter.take(node, reports, actor=actor)

    async def _first_generation(self, id: str | None) -> int:
        """That of a new instance's first copy.

        An id that a caller chose may have been used before, and a node that was given up then may come back
        with a copy of that time, which must be the older one. Every copy costs a transaction, so the number
        of those is more than any generation there ever was.
        """
        return 1 if id is None else await self._store.revision() + 1

    async def _known(self, id: str) -> Known:
        known = self._census.get(id) or await self._writer.read(id)  # perhaps another server has just made it
        if known is None:
            raise writing.missing(id)
        return known

    async def _wish(self, id: str, desired: Desired, actor: str) -> Instance:
        return await self._change(
            id, lambda known: transitions.wish(known.value, desired, at=self._clock.now(), actor=actor)
        )

    async def _change(self, id: str, decide: Callable[[Known], Step | None]) -> Instance:
        found: list[Instance] = []

        def remember(known: Known) -> Step | None:
            found[:] = [known.value]
            return decide(known)

        step = await self._writer.change(id, remember)
        return step.after if step is not None else found[0]

    def _shown(self, known: Known) -> Instance:
        """With what only this moment knows: that its node is not heard of."""
        instance = known.value
        if instance.node is None or instance.observed.status in FINAL:
            return instance
        standing = self._standings.standing(instance.node)
        if standing is not None and standing.liveness is Liveness.LIVE:
            return instance
        return replace(instance, observed=replace(instance.observed, reason=UNREACHABLE))

    def _tell_watches(self, before: Known | None, after: Known | None) -> None:
        if not self._watches:
            return
        one = after or before
        watches = self._watches.get(one.value.id) if one else None
        if not watches or one is None:
            return
        latest = one.value if after is not None else _gone(one.value, self._clock.now())
        for watch in watches:
            watch.put(latest)


class _Watch:
    """What one reader is still to be told of one instance."""

    def __init__(self, instance: Instance) -> None:
        self._due = deque([instance], maxlen=_MAX_DUE + 1)  # one too many is enough to know
        self._is_new = asyncio.Event()

    def put(self, instance: Instance) -> None:
        if self._due and self._due[-1].observed.status is instance.observed.status:
            self._due.pop()
        self._due.append(instance)
        self._is_new.set()

    async def next(self) -> Instance:
        while not self._due:
            self._is_new.clear()
            await self._is_new.wait()
        if len(self._due) > _MAX_DUE:
            raise errors.Overloaded(
                f"more than {_MAX_DUE} changes of the instance wait to be read; watch again, and read faster"
            )
        return self._due.popleft()


def _new(
    id: str | None,
    what: Spec | str,
    workload: Kept | None,
    namespace: Namespace,
    now: float,
    generation: int,
) -> Instance:
    spec = what if isinstance(what, Spec) else None
    if workload is not None:
        spec = workload.value.spec
    assert spec is not None, "what is no spec names a workload"
    return Instance(
        id=InstanceId(id or fresh_ids.new_id(now)),
        spec=spec,
        created_at=now,
        observed=Observed(Status.SCHEDULING, now, "waits for a node"),
        workload=workload.value.id if workload else None,
        version=workload.value.version if workload else 0,
        generation=generation,
        namespace=namespace,
    )


def _same(there: Instance, what: Spec | str, workload: Kept | None, namespace: Namespace) -> Instance:
    """The one that is there, if it is what was asked for."""
    if there.namespace != namespace:
        raise exists_elsewhere("instance", there)
    is_same = there.workload == workload.value.id if workload else there.spec == what
    if not is_same:
        raise errors.AlreadyExists(
            f"instance {there.id} exists with another spec; change it, or choose an id"
        )
    return there


def _gone(instance: Instance, now: float) -> Instance:
    """What was removed from the store, as the last thing to tell of it."""
    if instance.observed.status in FINAL:
        return instance
    return replace(instance, observed=Observed(Status.TERMINATED, now, "destroyed"))
