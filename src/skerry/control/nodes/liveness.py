"""Which nodes are heard of, across all servers of the cloud, and what the silence of the others means.

A node is heard at the server that it is connected to. That server keeps `alive/<node>` in the store while it
hears the node, all such keys under one lease of its own: nothing is written while nodes go on talking, a
silent node's key is removed by its server, and a dead server's keys go by themselves. So every server knows
the same, and the leader can judge nodes that are connected elsewhere. `HeartbeatPublisher` is the writing
half, which `skerry.control.nodes.registry` owns; `LivenessTracker` is the judging half of
`skerry.control.nodes.index`, and pure.
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
_LOOK_S = 0.25  # between two looks for who has fallen silent, at least


class NodeHeartbeat(msgspec.Struct, frozen=True):
    """A node is heard at `server`."""

    server: str


@dataclass(slots=True)
class _Beat:
    heard_at: float  # monotonic
    revision: int = 0  # of its key as we wrote it; 0: it is not there


class HeartbeatPublisher:
    """Keeps the keys of the nodes that are heard at this server."""

    def __init__(self, store: Store, clock: Clock, settings: FleetSettings, *, server: str) -> None:
        self._store = store
        self._clock = clock
        self.server = server
        self._value = json_codec.encode(NodeHeartbeat(server))
        self._silence_s = settings.suspect_after_s
        self._ttl_s = math.ceil(settings.suspect_after_s)
        self._beats: dict[NodeId, _Beat] = {}
        self._keeper = LeaseKeeper(store, self._ttl_s)
        self._wake = asyncio.Event()
        self._listeners: CallbackList[[NodeId]] = CallbackList()
        self._busy_with: Counter[NodeId] = Counter()

    def begin(self, node: NodeId) -> None:
        """The node has come to this server, and is heard here from now on, wherever it was before."""
        self._beats[node] = _Beat(self._clock.monotonic())
        self._wake.set()

    def heard(self, node: NodeId) -> None:
        """Something came from the node, here."""
        beat = self._beats.get(node)
        if beat is None:
            self.begin(node)
        else:
            beat.heard_at = self._clock.monotonic()

    @contextmanager
    def busy_with(self, node: NodeId) -> Iterator[None]:
        """While this server works on what the node said it reads no more of it, so that is no silence."""
        self._busy_with[node] += 1
        try:
            yield
        finally:
            self._busy_with[node] -= 1
            if not self._busy_with[node]:
                del self._busy_with[node]

    def listen(self, overtaken: Callable[[NodeId], None]) -> None:
        """Call `overtaken` with nodes that were heard here, and are heard at another server now."""
        self._listeners.add(overtaken)

    def key_changed(self, node: NodeId, record: Record[NodeHeartbeat] | None) -> None:
        """The node's key stands as `record` says: it may be another's by now, or gone against our will."""
        beat = self._beats.get(node)
        if beat is None or not beat.revision:
            return
        if record is None:
            beat.revision = 0
            self._wake.set()
        elif record.value.server != self.server and record.revision > beat.revision:
            del self._beats[node]
            self._listeners.notify(node)

    async def run(self) -> None:
        """Keep the lease and the keys, for ever."""
        while True:
            try:
                await self.beat()
                pause_s = min(self._ttl_s / RENEWALS, self._until_silence())
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

    async def beat(self) -> None:
        """Renew the lease, write the keys of those that are newly heard, remove those of the silent."""
        await self._renew()
        quiet = self._clock.monotonic() - self._silence_s
        fresh = [node for node, beat in self._beats.items() if not beat.revision and beat.heard_at > quiet]
        silent = [
            node
            for node, beat in self._beats.items()
            if beat.heard_at <= quiet and node not in self._busy_with
        ]
        for some in _chunks(fresh):
            await self._write(some)
        for some in _chunks(silent):
            await self._remove(some)

    def _until_silence(self) -> float:
        """How long until somebody may have fallen silent."""
        first = min((beat.heard_at for beat in self._beats.values()), default=math.inf)
        return max(_LOOK_S, first + self._silence_s - self._clock.monotonic())

    async def _renew(self) -> None:
        before = self._keeper.lease
        if await self._keeper.renew():
            return
        if before != NO_LEASE:
            log.warning("pulse.lease_ended", server=self.server)
        for beat in self._beats.values():
            beat.revision = 0  # the keys went with the lease before

    async def _write(self, nodes: list[NodeId]) -> None:
        beats = {node: beat for node in nodes if (beat := self._beats.get(node)) is not None}
        revision = await self._store.commit(
            [Put(PREFIX + node, self._value, self._keeper.lease) for node in beats]
        )
        for beat in beats.values():
            beat.revision = revision

    async def _remove(self, nodes: list[NodeId]) -> None:
        beats = {node: beat for node in nodes if (beat := self._beats.get(node)) is not None}
        written = {node: beat for node, beat in beats.items() if beat.revision}
        try:
            await self._store.commit(
                [Delete(PREFIX + node) for node in written],
                [Expect(PREFIX + node, beat.revision) for node, beat in written.items()],
            )
        except errors.Conflict:
            # One of them is heard elsewhere by now, and we shall `key_changed` it.
            log.info("pulse.overtaken", nodes=len(written))
            return
        for node, beat in beats.items():
            if self._beats.get(node) is beat:
                del self._beats[node]
        if written:
            log.info("nodes.silent", nodes=sorted(written)[:10], count=len(written))


class LivenessTracker:
    """What the silence of nodes means. Times are one server's monotonic ones, and come in as arguments."""

    def __init__(self, *, suspect_after_s: float, lost_after_s: float) -> None:
        self._suspect_after_s = suspect_after_s
        self._lost_after_s = max(lost_after_s, suspect_after_s)
        self._since: dict[NodeId, float] = {}
        self._reported_lost: set[NodeId] = set()

    def heard(self, node: NodeId) -> None:
        """It is heard somewhere, or is no node any more."""
        self._since.pop(node, None)
        self._reported_lost.discard(node)

    def fell_silent(self, node: NodeId, now: float) -> None:
        """The server that heard it does not any more, and has waited for `suspect_after_s` already."""
        self._since[node] = now - self._suspect_after_s

    def unheard(self, node: NodeId, now: float) -> None:
        """Nothing is known of when it was heard last: its silence begins now.

        So a server that has just started gives everybody the full time.
        """
        self._since.setdefault(node, now)

    def liveness(self, node: NodeId, now: float) -> Liveness:
        since = self._since.get(node)
        if since is None:
            return Liveness.LIVE
        return Liveness.LOST if now - since >= self._lost_after_s else Liveness.SUSPECT

    def take_lost(self, now: float) -> list[NodeId]:
        """Those that have become lost since this was last asked."""
        lost = [
            node
            for node, since in self._since.items()
            if now - since >= self._lost_after_s and node not in self._reported_lost
        ]
        self._reported_lost.update(lost)
        return lost

    def next_loss(self) -> float | None:
        """When `take_lost` will have something to tell; None if nobody is silent."""
        waiting = (since for node, since in self._since.items() if node not in self._reported_lost)
        first = min(waiting, default=None)
        return None if first is None else first + self._lost_after_s


def _chunks(nodes: list[NodeId]) -> Iterable[list[NodeId]]:
    return (nodes[start : start + MAX_OPS] for start in range(0, len(nodes), MAX_OPS))
