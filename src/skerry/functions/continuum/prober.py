"""Pings other members for their load and the round-trip time.

Those that a view may contain are pinged every `functions.ping_s`: all of a small area and the nearest of a
large one. The others are pinged round-robin, so that the cost does not grow with the cloud. A member that
does not answer, or loses a call, is down until it answers. It is pinged again soon at first (a new member may
not know all others yet), then as rarely as all; one that is down and sends a ping itself is pinged at once.
Results go to `member_table` and to the node's coordinate. Sends no calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from skerry.functions.continuum.member_api import MemberClient, MemberLoad
from skerry.functions.continuum.member_table import MemberState, MemberTable
from skerry.functions.coordinates import Vivaldi
from skerry.kit import tasks
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.settings import FunctionSettings

log = structlog.get_logger(__name__)

_NEAR: Final = 32  # of each kind, pinged every time
_OTHERS: Final = 8  # of the others, so many are pinged in the same time
_AT_ONCE: Final = 32  # under way: each may need a connection first
_JITTER: Final = 0.1  # of the time between two, so that they do not all come together
_RANK_S: Final = 1.0  # between two updates of the nearest
_AGAIN_S: Final = 0.25  # after the first ping that was not answered, and twice as long after each more
_STEP_S: Final = 0.05  # those that are due within this are pinged together


class MemberProber:
    """`run` for ever; the rest may be called at any time."""

    def __init__(
        self,
        links: MemberClient,
        places: MemberTable,
        vivaldi: Vivaldi,
        load: Callable[[], MemberLoad],
        settings: FunctionSettings,
        clock: Clock,
        chance: random.Random,
    ) -> None:
        self._links = links
        self.places = places
        self._vivaldi = vivaldi
        self._load = load
        self._every_s = settings.ping_s
        self._timeout_s = settings.neighbour_timeout_s
        self._monotonic = clock.monotonic
        self._chance = chance
        self._pings: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()  # set, and another one from then on, when a ping has ended
        self._ranked_at = -math.inf

    def load_reported(self, node: NodeId, load: MemberLoad) -> None:
        """A neighbour reported its load with a ping of its own."""
        peer = self.places.peers.get(node)
        if peer is None:
            return
        self.places.update_load(peer, load, self._vivaldi.coordinate, self._monotonic())
        if not peer.is_up:
            self.probe_soon(peer)

    def lost(self, peer: MemberState, reason: str) -> None:
        """A call could not be brought there, or came to no end."""
        self._down(peer, reason)
        self.probe_soon(peer)

    def probe_soon(self, peer: MemberState) -> None:
        peer.due_at = -math.inf
        self._wake.set()

    def member_answered(self, node: NodeId) -> None:
        """A member answered another part of this process: if it was down, it is pinged at once."""
        peer = self.places.peers.get(node)
        if peer is not None and not peer.is_up:
            peer.misses = 0
            self.probe_soon(peer)

    async def first_answer(self) -> None:
        """Wait until one of the members that are pinged for the first time is up; no longer than one timeout.

        Members that have missed a ping are not waited for.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                while self._has_unknown():
                    await self._answered.wait()

    def _has_unknown(self) -> bool:
        peers = (*self.places.neighbours, *self.places.remote)
        return not any(peer.is_up for peer in peers) and any(
            not (peer.is_measured or peer.misses) and (peer.is_probing or peer.due_at == -math.inf)
            for peer in peers
        )

    def update_nearest(self) -> None:
        """There may be new ones."""
        self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                wait_s = self._probe_due(self._monotonic())
                try:
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            await tasks.cancel_and_wait(self._pings)

    def _probe_due(self, now: float) -> float:
        """Ping members that are due; returns the seconds until the next."""
        if now >= self._ranked_at + _RANK_S:
            self._ranked_at = now
            self.places.rank()
        next_at = now + self._every_s
        soon = now + _STEP_S
        for peers in (self.places.neighbours, self.places.remote):
            others_s = self._every_s * max(1.0, (len(peers) - _NEAR) / _OTHERS)
            for rank, peer in enumerate(peers):
                every_s = self._every_s if rank < _NEAR else others_s
                if rank >= _NEAR and peer.due_at == -math.inf and not peer.is_measured:
                    # The members of a large new area are not pinged all at once.
                    peer.due_at = now + self._chance.random() * others_s
                if peer.due_at <= now and not peer.is_probing:
                    if len(self._pings) >= _AT_ONCE:
                        return next_at - now  # the end of one of them wakes us
                    peer.due_at = now + every_s * (1.0 + self._chance.uniform(-_JITTER, _JITTER))
                    self._probe(peer)
                next_at = min(next_at, max(soon, peer.due_at))
        return next_at - now

    def _probe(self, peer: MemberState) -> None:
        peer.is_probing = True
        ping = asyncio.get_running_loop().create_task(self._ping(peer))
        self._pings.add(ping)
        ping.add_done_callback(partial(self._probe_ended, peer))

    def _probe_ended(self, peer: MemberState, ping: asyncio.Task[None]) -> None:
        peer.is_probing = False
        self._answered.set()
        self._answered = asyncio.Event()
        if len(self._pings) >= _AT_ONCE:
            self._wake.set()
        self._pings.discard(ping)
        if not ping.cancelled() and (error := ping.exception()) is not None:
            log.error("neighbour.ping_failed", error=repr(error), exc_info=error)

    async def _ping(self, peer: MemberState) -> None:
        address = peer.member.address
        try:
            load, rtt_s = await self._links.ping(peer.member, self._load())
        except errors.SkerryError as error:
            self._down(peer, error.message)
            self._probe_again(peer)
            return
        if self.places.peers.get(peer.member.node) is not peer or peer.member.address != address:
            return  # it has left meanwhile, or is elsewhere
        peer.misses = 0
        if not peer.is_up:
            log.info("neighbour.up", node=peer.member.node, name=peer.member.name, rtt_s=round(rtt_s, 6))
        self._vivaldi.observe(peer.member.node, load.coordinate, rtt_s)
        self.places.update_load(peer, load, self._vivaldi.coordinate, self._monotonic())
        self.places.measured(peer, rtt_s)

    def _probe_again(self, peer: MemberState) -> None:
        """Before its time, as long as it has missed only a few."""
        soon_s = _AGAIN_S * 2.0 ** min(peer.misses, 32)
        peer.misses += 1
        if soon_s < self._every_s:
            peer.due_at = min(peer.due_at, self._monotonic() + soon_s)
            self._wake.set()

    def _down(self, peer: MemberState, reason: str) -> None:
        if peer.is_up:
            log.warning("neighbour.down", node=peer.member.node, name=peer.member.name, reason=reason)
            self.places.lose(peer)
