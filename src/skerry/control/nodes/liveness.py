"""Liveness of nodes: heartbeats across all servers of the cloud, and when a node is suspect or lost.

A node sends heartbeats to the server that it is connected to. That server has `alive/<node>` in the store
while they come, all such keys under one lease of its own: nothing is written while heartbeats come, the key
of a node without them is removed by its server, and a dead server's keys expire. So every server knows the
same, and the leader can decide about nodes that are connected to others. `HeartbeatPublisher` writes, and
belongs to `skerry.control.nodes.registry`; `LivenessTracker` decides, for `skerry.control.nodes.index`, and
is pure.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import structlog

from skerry.kit import json_codec
from skerry.kit.callbacks import CallbackList
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.nodes import Liveness
from skerry.model.settings import FleetSettings
from skerry.store.protocol import MAX_OPS, NO_LEASE, Delete, Expect, Put, Store
from skerry.store.tables.leases import RENEWALS, RETRY_S, LeaseKeeper
from skerry.store.tables.table import Record

log = structlog.get_logger(__name__)

PREFIX = "alive/"
_LOOK_S = 0.25  # between two checks for missing heartbeats, at least


class NodeHeartbeat(msgspec.Struct, frozen=True):
    """A node is connected to `server`, and live."""

    server: str


@dataclass(slots=True)
class _Heartbeat:
    received_at: float  # monotonic
    revision: int = 0  # of its key as we wrote it; 0: there is none


class HeartbeatPublisher:
    """Keeps the keys of the live nodes of this server."""

    def __init__(self, store: Store, clock: Clock, settings: FleetSettings, *, server: str) -> None:
        self._store = store
        self._clock = clock
        self.server = server
        self._value = json_codec.encode(NodeHeartbeat(server))
        self._silence_s = settings.suspect_after_s
        self._ttl_s = math.ceil(settings.suspect_after_s)
        self._heartbeats: dict[NodeId, _Heartbeat] = {}
        self._lease = LeaseKeeper(store, self._ttl_s)
        self._wake = asyncio.Event()
        self._listeners: CallbackList[[NodeId]] = CallbackList()
        self._busy_with: Counter[NodeId] = Counter()

    def begin(self, node: NodeId) -> None:
        """The node has connected to this server, and is live here from now on, wherever it was before."""
        self._heartbeats[node] = _Heartbeat(self._clock.monotonic())
        self._wake.set()

    def received(self, node: NodeId) -> None:
        """A message came from the node."""
        heartbeat = self._heartbeats.get(node)
        if heartbeat is None:
            self.begin(node)
        else:
            heartbeat.received_at = self._clock.monotonic()

    @contextmanager
    def busy_with(self, node: NodeId) -> Iterator[None]:
        """While this server processes a message of the node it reads no others, so the node stays live."""
        self._busy_with[node] += 1
        try:
            yield
        finally:
            self._busy_with[node] -= 1
            if not self._busy_with[node]:
                del self._busy_with[node]

    def listen(self, overtaken: Callable[[NodeId], None]) -> None:
        """Call `overtaken` with nodes that were connected here, and are connected to another server now."""
        self._listeners.add(overtaken)

    def key_changed(self, node: NodeId, record: Record[NodeHeartbeat] | None) -> None:
        """The node's key is now `record`: it may be another server's, or deleted."""
        heartbeat = self._heartbeats.get(node)
        if heartbeat is None or not heartbeat.revision:
            return
        if record is None:
            heartbeat.revision = 0
            self._wake.set()
        elif record.value.server != self.server and record.revision > heartbeat.revision:
            del self._heartbeats[node]
            self._listeners.notify(node)

    async def run(self) -> None:
        """Keep the lease and the keys, for ever."""
        while True:
            try:
                await self.publish()
                pause_s = min(self._ttl_s / RENEWALS, self._until_missing())
            except (errors.Unavailable, errors.NotFound) as error:
                # The store is away, or the lease ended in the middle of it.
                log.warning("pulse.interrupted", error=error.message)
                pause_s = RETRY_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def publish(self) -> None:
        """Renew the lease, write the keys of nodes that have become live, delete those of nodes without
        heartbeats."""
        await self._renew()
        quiet = self._clock.monotonic() - self._silence_s
        fresh = [
            node
            for node, heartbeat in self._heartbeats.items()
            if not heartbeat.revision and heartbeat.received_at > quiet
        ]
        silent = [
            node
            for node, heartbeat in self._heartbeats.items()
            if heartbeat.received_at <= quiet and node not in self._busy_with
        ]
        for some in _chunks(fresh):
            await self._write(some)
        for some in _chunks(silent):
            await self._remove(some)

    def _until_missing(self) -> float:
        """How long until the heartbeat of a node may be missing."""
        first = min((heartbeat.received_at for heartbeat in self._heartbeats.values()), default=math.inf)
        return max(_LOOK_S, first + self._silence_s - self._clock.monotonic())

    async def _renew(self) -> None:
        before = self._lease.lease
        if await self._lease.renew():
            return
        if before != NO_LEASE:
            log.warning("pulse.lease_ended", server=self.server)
        for heartbeat in self._heartbeats.values():
            heartbeat.revision = 0  # the keys went with the lease before

    async def _write(self, nodes: list[NodeId]) -> None:
        beats = {node: heartbeat for node in nodes if (heartbeat := self._heartbeats.get(node)) is not None}
        revision = await self._store.commit(
            [Put(PREFIX + node, self._value, self._lease.lease) for node in beats]
        )
        for heartbeat in beats.values():
            heartbeat.revision = revision

    async def _remove(self, nodes: list[NodeId]) -> None:
        beats = {node: heartbeat for node in nodes if (heartbeat := self._heartbeats.get(node)) is not None}
        written = {node: heartbeat for node, heartbeat in beats.items() if heartbeat.revision}
        try:
            await self._store.commit(
                [Delete(PREFIX + node) for node in written],
                [Expect(PREFIX + node, heartbeat.revision) for node, heartbeat in written.items()],
            )
        except errors.Conflict:
            # One of them is connected to another server by now; `key_changed` follows.
            log.info("pulse.overtaken", nodes=len(written))
            return
        for node, heartbeat in beats.items():
            if self._heartbeats.get(node) is heartbeat:
                del self._heartbeats[node]
        if written:
            log.info("nodes.silent", nodes=sorted(written)[:10], count=len(written))


class LivenessTracker:
    """Decides when nodes are suspect and lost. Times are of one server's monotonic clock, and come in as
    arguments."""

    def __init__(self, *, suspect_after_s: float, lost_after_s: float) -> None:
        self._suspect_after_s = suspect_after_s
        self._lost_after_s = max(lost_after_s, suspect_after_s)
        self._since: dict[NodeId, float] = {}
        self._awaited: set[NodeId] = set()
        self._reported_lost: set[NodeId] = set()

    def mark_live(self, node: NodeId) -> None:
        """It is live, or not registered any more."""
        self._since.pop(node, None)
        self._awaited.discard(node)
        self._reported_lost.discard(node)

    def mark_suspect(self, node: NodeId, now: float) -> None:
        """Its server gets no heartbeats any more, and has waited for `suspect_after_s` already."""
        self._since[node] = now - self._suspect_after_s
        self._awaited.discard(node)

    def mark_unknown(self, node: NodeId, now: float) -> None:
        """Its last heartbeat is not known: the time begins now.

        So a server that has just started gives every node the full time.
        """
        if node not in self._since:
            self._since[node] = now
            self._awaited.add(node)

    def is_awaited(self, node: NodeId, now: float) -> bool:
        """Whether its last heartbeat is not known, and it may still send one in time."""
        return node in self._awaited and now - self._since[node] < self._suspect_after_s

    def liveness(self, node: NodeId, now: float) -> Liveness:
        since = self._since.get(node)
        if since is None:
            return Liveness.LIVE
        return Liveness.LOST if now - since >= self._lost_after_s else Liveness.SUSPECT

    def silent_s(self, node: NodeId, now: float) -> float | None:
        """For how long it has been silent; None: it is live."""
        since = self._since.get(node)
        return None if since is None else max(0.0, now - since)

    def take_overdue(self, now: float) -> list[NodeId]:
        """Nodes that have become lost, or are not awaited any more, since the last call."""
        missed = [node for node in self._awaited if now - self._since[node] >= self._suspect_after_s]
        self._awaited.difference_update(missed)
        lost = [
            node
            for node, since in self._since.items()
            if now - since >= self._lost_after_s and node not in self._reported_lost
        ]
        self._reported_lost.update(lost)
        return list(dict.fromkeys([*missed, *lost]))

    def next_overdue(self) -> float | None:
        """When `take_overdue` will return a node; None if all are live."""
        missed = [self._since[node] + self._suspect_after_s for node in self._awaited]
        lost = [
            since + self._lost_after_s
            for node, since in self._since.items()
            if node not in self._reported_lost
        ]
        return min((*missed, *lost), default=None)


def _chunks(nodes: list[NodeId]) -> Iterable[list[NodeId]]:
    return (nodes[start : start + MAX_OPS] for start in range(0, len(nodes), MAX_OPS))
