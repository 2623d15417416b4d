"""The state of the other members, and the views for policies.

`prober` updates it with the members' answers; `router` and `forwarding` read views and record where calls
were sent. Pure: the time is an argument, and nothing waits. A view is cached until it changes, because one is
needed for every call that may be forwarded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from skerry.functions.continuum.candidates import CallDemand, Candidate, CandidateView
from skerry.functions.continuum.member_api import MemberLoad
from skerry.functions.coordinates import START, Coordinate, distance_s, is_sound
from skerry.model.ids import FunctionName, NodeId
from skerry.model.members import ContinuumMember, MemberStatus

_MAX_VISIBLE: Final = 32  # of each kind, the nearest: a policy examines all of them
_FRESH_S: Final = 0.5  # a view has the age of its data, and is itself no older than this
_MAX_VIEWS: Final = 512  # functions whose views are kept


class MemberState:
    """Another member: its last reported load, less what was sent there since."""

    __slots__ = (
        "coordinate",
        "cpus_free",
        "done",
        "due_at",
        "is_measured",
        "is_probing",
        "is_up",
        "lost",
        "member",
        "memory_free",
        "misses",
        "refused",
        "reported_at",
        "rtt_s",
        "stamp",
        "waiting",
        "warm",
    )

    def __init__(self, member: ContinuumMember) -> None:
        self.member = member
        self.coordinate: Coordinate | None = None
        self.rtt_s = math.inf  # measured, or else predicted by coordinates
        self.is_measured = False
        self.is_up = False  # until it has answered
        self.reported_at = -math.inf
        self.is_probing = False  # it has yet to answer a ping
        self.due_at = -math.inf  # when it is probed next
        self.misses = 0  # pings in a row that were not answered
        self.memory_free = 0
        self.cpus_free = 0.0
        self.waiting = 0
        self.warm: dict[FunctionName, int] = {}
        self.stamp = 0
        self.done = 0  # calls that it has answered
        self.refused = 0
        self.lost = 0  # calls that went there when it could not be reached, or came to no end


class _CachedView:
    """The places that a view of one function consists of."""

    __slots__ = ("neighbours", "order", "remote", "stamp", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.order = -1
        self.stamp = -1
        self.neighbours: tuple[Candidate, ...] = ()
        self.remote: tuple[Candidate, ...] = ()


class MemberTable:
    """All other members. A member without workers of its own uses every area, others their own and one
    remote."""

    def __init__(self, me: ContinuumMember) -> None:
        self.me = me
        self.peers: dict[NodeId, MemberState] = {}
        self.neighbours: list[MemberState] = []  # of our area, those that run calls; nearest first
        self.remote: list[MemberState] = []  # of the remote area, likewise
        self._visible: tuple[list[MemberState], list[MemberState]] = (
            [],
            [],
        )  # of both, those that a view has
        self._order = 0  # goes up when those change
        self._stamp = 0  # goes up when anything does
        self._views: dict[FunctionName, _CachedView] = {}

    # Members

    def follow(self, members: Iterable[ContinuumMember]) -> None:
        """These are all members from now on."""
        listed = {member.node: member for member in members if member.node != self.me.node and member.address}
        for node in self.peers.keys() - listed.keys():
            del self.peers[node]
        for node, member in listed.items():
            peer = self.peers.get(node)
            if peer is None:
                self.peers[node] = MemberState(member)
            elif peer.member != member:
                if peer.member.address != member.address:
                    peer.is_up = False
                    peer.due_at = -math.inf
                peer.member = member
        me = self.me
        running = [peer for peer in self.peers.values() if peer.member.memory]
        self.neighbours = [peer for peer in running if peer.member.area == me.area]
        self.remote = [peer for peer in running if self._is_remote(peer.member)]
        self.rank()

    def _is_remote(self, member: ContinuumMember) -> bool:
        me = self.me
        return member.area != me.area and (not me.memory or member.area == me.remote_area)

    def rank(self) -> None:
        """Put the nearest first, by what is known now."""
        self.neighbours.sort(key=_by_distance)
        self.remote.sort(key=_by_distance)
        self._show()

    def _show(self) -> None:
        shown = (_nearest_up(self.neighbours), _nearest_up(self.remote))
        if shown != self._visible:
            self._visible = shown
            self._order += 1

    # What they are like

    def round_trip_s(self, node: NodeId) -> float | None:
        """A round trip to a member, measured or predicted; None: not known."""
        peer = self.peers.get(node)
        return None if peer is None or not math.isfinite(peer.rtt_s) else peer.rtt_s

    def update_load(self, peer: MemberState, load: MemberLoad, mine: Coordinate, now: float) -> None:
        """The load that `peer` reports. Impossible values are clamped."""
        member = peer.member
        peer.memory_free = min(load.memory_free, member.memory)
        peer.cpus_free = load.cpus_free if 0.0 <= load.cpus_free <= member.cpus else member.cpus
        peer.waiting = load.waiting
        peer.warm = dict(load.warm)
        peer.coordinate = load.coordinate if is_sound(load.coordinate) else START
        peer.reported_at = now
        if not peer.is_measured:
            peer.rtt_s = distance_s(mine, peer.coordinate)
        self._touch(peer)

    def measured(self, peer: MemberState, rtt_s: float) -> None:
        """It answered, after so long: it is up."""
        peer.rtt_s = rtt_s
        peer.is_measured = True
        self._touch(peer)
        if not peer.is_up:
            peer.is_up = True
            self.rank()

    def lose(self, peer: MemberState) -> None:
        """It cannot be reached: until it answers again, it is no place to be."""
        if peer.is_up:
            peer.is_up = False
            self._show()

    def take(self, peer: MemberState, demand: CallDemand) -> None:
        """A call is sent there: count its resources before the peer reports it."""
        peer.memory_free = max(0, peer.memory_free - demand.memory)
        peer.cpus_free = max(0.0, peer.cpus_free - demand.cpu)
        if warm := peer.warm.get(demand.function):
            peer.warm[demand.function] = warm - 1
        self._touch(peer)

    def give_back(self, peer: MemberState, demand: CallDemand, *, leaves_worker: bool) -> None:
        """It has ended there, whether the peer has reported it or not; its worker may be idle now."""
        peer.memory_free = min(peer.member.memory, peer.memory_free + demand.memory)
        peer.cpus_free = min(peer.member.cpus, peer.cpus_free + demand.cpu)
        if leaves_worker:
            peer.warm[demand.function] = peer.warm.get(demand.function, 0) + 1
        self._touch(peer)

    def _touch(self, peer: MemberState) -> None:
        self._stamp += 1
        peer.stamp = self._stamp

    # What a call may choose from

    def all_statuses(self, now: float) -> list[MemberStatus]:
        """All members, for people: those that a policy may choose come first, nearest first."""
        near = {id(peer): None for peer in (*self.neighbours, *self.remote)}
        rest = [peer for peer in self.peers.values() if id(peer) not in near]
        return [
            MemberStatus(
                peer.member,
                peer.is_up,
                peer.rtt_s if math.isfinite(peer.rtt_s) else None,
                now - peer.reported_at if math.isfinite(peer.reported_at) else None,
                peer.memory_free,
                peer.cpus_free,
                peer.waiting,
                peer.done,
                peer.refused,
                peer.lost,
            )
            for peer in (*self.neighbours, *self.remote, *rest)
        ]

    def view(self, function: FunctionName, here: Candidate, now: float) -> CandidateView:
        """Those that are up, as a call of `function` sees them."""
        cached = self._views.get(function)
        if cached is None or now >= cached.until:
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            cached = self._views[function] = _CachedView(now + _FRESH_S)
        if cached.order != self._order:
            neighbours, remote = self._visible
            cached.neighbours = tuple([_place(peer, function, now) for peer in neighbours])
            cached.remote = tuple([_place(peer, function, now) for peer in remote])
            cached.order, cached.stamp = self._order, self._stamp
        elif cached.stamp != self._stamp:
            neighbours, remote = self._visible
            cached.neighbours = _renewed(cached.neighbours, neighbours, cached.stamp, function, now)
            cached.remote = _renewed(cached.remote, remote, cached.stamp, function, now)
            cached.stamp = self._stamp
        return CandidateView(here, cached.neighbours, cached.remote)


def _by_distance(peer: MemberState) -> float:
    return peer.rtt_s


def _nearest_up(peers: list[MemberState]) -> list[MemberState]:
    return [peer for peer in peers if peer.is_up][:_MAX_VISIBLE]


def _renewed(
    before: tuple[Candidate, ...], peers: list[MemberState], stamp: int, function: FunctionName, now: float
) -> tuple[Candidate, ...]:
    """The views, with new ones for members that have changed since `stamp`."""
    return tuple(
        [
            place if peer.stamp <= stamp else _place(peer, function, now)
            for place, peer in zip(before, peers, strict=True)
        ]
    )


def _place(peer: MemberState, function: FunctionName, now: float) -> Candidate:
    member = peer.member
    return Candidate(
        member.node,
        member.area,
        False,
        member.memory,
        peer.memory_free,
        member.cpus,
        peer.cpus_free,
        peer.warm.get(function, 0),
        peer.waiting,
        peer.rtt_s,
        True,
        max(0.0, now - peer.reported_at),
    )
