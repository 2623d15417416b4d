"""The nodes of this cloud: registered, heard, lost, cordoned, drained, and gone.

A node is one record of the store, `node/<id>`, which changes only when something lasting does. That it is
heard is kept apart (`skerry.control.liveness`), and so is its subnet (`skerry.control.subnets`). Nodes
register by their session (`skerry.control.sessions`); those of third parties by the calls of Kudo's
documents, and take no orders. What runs on a node is for `skerry.control.reconciling`, which reads standings
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import msgspec
import structlog
from msgspec.structs import replace

from skerry.control import roster, subnets, turns
from skerry.control.census import Known, Mirror
from skerry.control.events import EventLog
from skerry.control.liveness import Alive, Pulse
from skerry.control.roster import Changed, Held, Roster
from skerry.control.standings import Standing
from skerry.control.subnets import Subnets
from skerry.control.turns import Turn
from skerry.kit.clock import Clock
from skerry.model import errors, ids
from skerry.model.ids import InstanceId, NodeId
from skerry.model.members import Member
from skerry.model.nodes import Facts, Liveness, Node
from skerry.model.room import NOTHING, Room
from skerry.model.settings import FleetSettings
from skerry.model.statuses import FINAL, NodeStatus
from skerry.store.protocol import ABSENT, NO_LEASE, Delete, Expect, Op, Store

log = structlog.get_logger(__name__)

# Long enough for caches of addresses to forget, and for a machine to be set up anew.
SUBNET_GRACE_S = 600
_RETRY_S = 1.0
_AT_ONCE = 64


class Seen(msgspec.Struct, frozen=True):
    """What a node of a third party said last, at this server."""

    at: float
    usage: Room = NOTHING
    inventory: tuple[InstanceId, ...] | None = None  # None: it never said what it runs


class Nodes:
    """Every node, read from memory, changed in transactions, each with its event."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        mirror: Mirror,
        clock: Clock,
        settings: FleetSettings,
        *,
        fingerprint: str,
        server: str,
    ) -> None:
        """`fingerprint` is that of the cloud's CA; `server` is where people reach this server."""
        self._store = store
        self._events = events
        self._census = mirror.census
        self._clock = clock
        self._settings = settings
        self._subnets = Subnets(store, settings.subnets, fingerprint)
        self.pulse = Pulse(store, clock, settings, server=server)
        self._roster = Roster(store, clock, settings, self.pulse)
        self._seen: dict[NodeId, Seen] = {}
        self._unsettled: dict[NodeId, None] = {}  # in the order in which something happened to them
        self._wake = asyncio.Event()
        self._roster.listen(self._changed)
        mirror.listen(self._instance_changed)

    async def run(self) -> None:
        """Follow the store and keep this server's word on its nodes, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._roster.run())
            group.create_task(self._subnets.run())
            group.create_task(self.pulse.run())
            group.create_task(self._settle_for_ever())

    async def ready(self) -> None:
        """Wait until all nodes are known, and which of them are heard."""
        await self._roster.ready()
        await self._subnets.ready()

    # Reading

    def get(self, id_or_name: str) -> Node:
        """The node of this id, else the only one of this name; `NotFound` or `Refused` otherwise."""
        return self._roster.get(id_or_name)

    def list(self) -> Sequence[Node]:
        """All of them, by id."""
        return self._roster.all()

    def liveness(self, node: NodeId) -> Liveness:
        return self._roster.liveness(node)

    def alive(self, node: NodeId) -> Alive | None:
        """At which server the node is heard; None if at none."""
        return self._roster.alive(node)

    def seen(self, node: NodeId) -> Seen | None:
        """What a node of a third party said last, if it said it here."""
        return self._seen.get(node)

    def standing(self, node: NodeId) -> Standing | None:
        return self._roster.standing(node)

    def standings(self) -> Sequence[Standing]:
        return self._roster.standings()

    def listen(self, changed: Changed) -> Callable[[], None]:
        """Call `changed` whenever a node stands differently, also by silence; the result ends that."""
        return self._roster.listen(changed)

    def tell_of_losses(self) -> None:
        """Tell of those who have been silent for too long by now. Happens by itself, in time."""
        self._roster.tell_of_losses()

    # Coming and going

    async def register(
        self,
        id: str,
        name: str,
        facts: Facts,
        room: Room,
        labels: Mapping[str, str],
        *,
        subnet: str = "",
        foreign: bool = False,
        member: Member | None = None,
    ) -> Node:
        """The node as it says it is, with its subnet; a known one is written only if something changed.

        `subnet` is the one it would like, which a new node gets if it is free. Labels count when a node is
        new; from then on they are the operators'. A node is a `member` by its own id, whatever it says.
        Raises `AlreadyExists` for a node of the other kind.
        """
        node = NodeId(ids.check_id(id))
        if member is not None:
            member = replace(member, node=node, is_server=False)
        held = self._roster.held(node)
        while True:
            try:
                if held is None:
                    now = self._clock.now()
                    status = NodeStatus.REGISTERING if foreign else NodeStatus.READY
                    new = Node(
                        node,
                        name,
                        now,
                        now,
                        status,
                        facts=facts,
                        labels=dict(labels),
                        room=room,
                        is_foreign=foreign,
                        member=member,
                    )
                    return await self._add(new, subnet)
                if held.node.is_foreign != foreign:
                    raise errors.AlreadyExists(
                        f"node {node} is registered as one that {_kind(held.node)}; unregister it first"
                    )
                turn = turns.renewed(held.node, name=name, facts=facts, room=room, member=member)
                return held.node if turn is None else await self._write(held, turn, f"node/{node}")
            except errors.Conflict:
                held = await self._read(node)

    async def report(
        self,
        id: str,
        status: NodeStatus,
        *,
        reason: str = "",
        room: Room | None = None,
        usage: Room = NOTHING,
        inventory: Sequence[InstanceId] | None = None,
    ) -> Node:
        """What a node of a third party says of itself: a sign of life, and written if it is news."""
        node = self.get(id)
        if not node.is_foreign:
            raise errors.Refused(f"node {node.id} reports by its own session, and by nothing else")
        self.pulse.heard(node.id)
        if self.alive(node.id) is None:
            await self.pulse.beat()  # before anything else is written: who is not heard is lost again at once

        def change(node: Node) -> Turn | None:
            after = replace(node, status=status, room=node.room if room is None else room)
            if after == node:
                return None
            after = replace(after, reason=ids.check_label(reason, "description"))
            return Turn(after, f"node.{status}", reason)

        node = await self._change(node.id, change, actor=f"node/{node.id}")
        if inventory is None and (before := self._seen.get(node.id)) is not None:
            inventory = before.inventory
        kept = None if inventory is None else tuple(inventory)
        self._seen[node.id] = Seen(self._clock.now(), usage, kept)
        return node

    async def unregister(self, id: str, *, actor: str, force: bool = False) -> None:
        """Forget the node; its subnet is given to others after a while. Refused while it has instances.

        By `force` they are given up at once, and placed elsewhere. A machine that still runs Skerry registers
        again when it connects: stop it first, or revoke its certificate.
        """
        node = self.get(id).id
        lease = NO_LEASE
        while True:
            held = await self._read(node)
            if held is None:
                raise roster.unknown(id)
            if (count := self._count(node)) and not force:
                raise errors.Refused(
                    f"node {node} has {count} instances; drain it first (`skerry node drain`), or use force"
                )
            ops: list[Op] = [
                Delete(roster.PREFIX + node),
                self._events.put("node.unregistered", f"node/{node}", actor=actor, name=held.node.name),
            ]
            if held.node.subnet:
                lease = lease or await self._store.grant(SUBNET_GRACE_S)
                ops.append(subnets.put(held.node.subnet, node, lease))
            try:
                revision = await self._store.commit(ops, [_expect(held)])
            except errors.Conflict:
                continue
            await self._roster.seen(revision)
            log.info("node.unregistered", node=node, actor=actor, instances=count)
            return

    # What operators say

    async def cordon(self, id: str, *, actor: str, reason: str = "") -> Node:
        """It takes nothing new, and keeps what it has."""

        def change(node: Node) -> Turn | None:
            if node.is_cordoned:
                return None
            return Turn(replace(node, is_cordoned=True), "node.cordoned", ids.check_label(reason, "reason"))

        return await self._change(id, change, actor=actor)

    async def uncordon(self, id: str, *, actor: str) -> Node:
        """It takes instances again; ends a drain, too."""
        return await self._change(id, turns.uncordoned, actor=actor)

    async def drain(self, id: str, *, actor: str, by: float | None = None) -> Node:
        """It gives up what it has: in good order until `by` (default: `fleet.drain_s`), then at once."""
        deadline = self._clock.now() + self._settings.drain_s if by is None else by

        def change(node: Node) -> Turn | None:
            if node.is_foreign:
                raise errors.Refused(f"node {node.id} takes no orders, so there is nothing to drain")
            if node.drain_by == deadline:
                return None
            status = node.status if node.status is NodeStatus.LOST else NodeStatus.DRAINING
            return Turn(replace(node, drain_by=deadline, status=status), "node.draining")

        return await self._change(id, change, actor=actor)

    async def relabel(self, id: str, labels: Mapping[str, str], *, actor: str) -> Node:
        """Give it these labels, instead of all that it has."""

        def change(node: Node) -> Turn | None:
            after = replace(node, labels=dict(labels))
            return None if after == node else Turn(after, "node.labelled")

        return await self._change(id, change, actor=actor)

    # What time makes of them

    async def settle(self) -> None:
        """One look at every node that something happened to: lost, back, or at the end of its drain.

        Every server does this. They see the same, and whose word comes second finds it written.
        """
        while self._unsettled:
            some = list(islice(self._unsettled, _AT_ONCE))
            for node in some:
                del self._unsettled[node]  # first: it may happen to them again meanwhile
            outcomes = await asyncio.gather(*map(self._settle, some), return_exceptions=True)
            for node, outcome in zip(some, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    self._unsettled[node] = None
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _settle_for_ever(self) -> None:
        await self.ready()
        while True:
            self._wake.clear()
            try:
                await self.settle()
                wait_s = self._until_next_drain()
            except errors.Unavailable as error:
                log.warning("nodes.not-settled", error=error.message)
                wait_s = _RETRY_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                self._unsettled.update(dict.fromkeys(sorted(self._roster.draining)))

    async def _settle(self, node: NodeId) -> None:
        held = self._roster.held(node)
        if held is None or self._settled(held.node) is None:
            return
        try:
            await self._change(node, self._settled, actor="skerry")
        except errors.NotFound:
            pass  # unregistered meanwhile

    def _settled(self, node: Node) -> Turn | None:
        return turns.settled(
            node,
            self.liveness(node.id),
            has_instances=bool(self._count(node.id)),
            now=self._clock.now(),
            lost_after_s=self._settings.lost_after_s,
        )

    def _until_next_drain(self) -> float | None:
        deadlines = (self.get(node).drain_by for node in self._roster.draining)
        first = min((at for at in deadlines if at is not None), default=None)
        return None if first is None else max(0.0, first - self._clock.now())

    # Inside

    async def _add(self, node: Node, proposal: str) -> Node:
        own = self._subnets.of(node.id)
        subnet = own or self._subnets.claim(proposal)
        revision_of_own = self._subnets.revision(subnet) if own else ABSENT
        node = replace(node, subnet=subnet)
        told = self._events.put(
            "node.registered", f"node/{node.id}", actor=f"node/{node.id}", name=node.name, subnet=subnet
        )
        try:
            revision = await self._store.commit(
                [roster.put(node), subnets.put(subnet, node.id), told],
                [
                    Expect(roster.PREFIX + node.id, ABSENT),
                    Expect(subnets.key_of(subnet), revision_of_own),
                ],
            )
            await self._subnets.seen(revision)
        except errors.Conflict:
            # Another server was quicker, with the node or with the subnet; the next try knows of it.
            await self._subnets.caught_up()
            raise
        finally:
            self._subnets.let_go(subnet)
        await self._roster.seen(revision)
        log.info("node.registered", node=node.id, name=node.name, subnet=subnet, foreign=node.is_foreign)
        return node

    async def _change(self, id: str, change: Callable[[Node], Turn | None], *, actor: str) -> Node:
        """Do what `change` says to the node, and return it as it is then; None: nothing."""
        held = self._roster.held(self.get(id).id)
        while True:
            if held is None:
                raise roster.unknown(id)
            node, turn = held.node, change(held.node)
            if turn is None:
                # That nothing is to be done must be true of what is, not only of what we have heard of.
                fresh = await self._read(node.id)
                if fresh == held:
                    return node
                held = fresh
                continue
            try:
                return await self._write(held, turn, actor)
            except errors.Conflict:
                held = await self._read(node.id)

    async def _write(self, held: Held, turn: Turn, actor: str) -> Node:
        node = replace(turn.node, reported_at=self._clock.now())
        told = self._events.put(turn.kind, f"node/{node.id}", actor=actor, reason=turn.reason, name=node.name)
        revision = await self._store.commit([roster.put(node), told], [_expect(held)])
        await self._roster.seen(revision)
        log.info(turn.kind, node=node.id, name=node.name, status=node.status, reason=turn.reason, actor=actor)
        return node

    async def _read(self, node: NodeId) -> Held | None:
        entry = await self._store.get(roster.PREFIX + node)
        return None if entry is None else roster.read(entry)

    def _count(self, node: NodeId) -> int:
        """How many instances it has that are not over."""
        return sum(known.value.observed.status not in FINAL for known in self._census.on_node(node))

    def _changed(self, node: NodeId) -> None:
        self._unsettled[node] = None
        self._wake.set()
        if self._roster.held(node) is None:
            self._seen.pop(node, None)

    def _instance_changed(self, before: Known | None, after: Known | None) -> None:
        node = before.value.node if before is not None else None
        if node is not None and node in self._roster.draining:
            self._unsettled[node] = None
            self._wake.set()


def _expect(held: Held) -> Expect:
    return Expect(roster.PREFIX + held.node.id, held.revision)


def _kind(node: Node) -> str:
    return "speaks only Kudo's calls" if node.is_foreign else "has a session of its own"
