"""What is known of the other members, and the views that policies decide by.

`prober` asks the members and tells this what they said; `router` and `forwarding` ask for views and say
where calls were sent. Pure: the time comes in, and nothing waits. A view is kept for as long as nothing of it
changes, since one is looked at for every call that may leave.
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

_SHOWN: Final = 32  # of each kind, the nearest: a policy looks at all of them
_FRESH_S: Final = 0.5  # a view tells how old its knowledge is, and may itself be no older than this
_SIGHTS: Final = 512  # functions whose views are kept


class MemberState:
    """Another member, as it said last that it is, less what was sent there since."""

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
        self.rtt_s = math.inf  # as measured, or else as the coordinates say
        self.is_measured = False
        self.is_up = False  # until it has answered
        self.reported_at = -math.inf
        self.is_probing = False  # it has yet to answer a ping
        self.due_at = -math.inf  # when it is to be asked next
        self.misses = 0  # pings in a row that were not answered
        self.memory_free = 0
        self.cpus_free = 0.0
        self.waiting = 0
        self.warm: dict[FunctionName, int] = {}
        self.stamp = 0
        self.done = 0  # calls that it has answered
        self.refused = 0
        self.lost = 0  # calls that went there when it could not be reached, or came to no end


class _Sight:
    """The places that a view of one function consists of."""

    __slots__ = ("neighbours", "order", "remote", "stamp", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.order = -1
        self.stamp = -1
        self.neighbours: tuple[Candidate, ...] = ()
        self.remote: tuple[Candidate, ...] = ()


class MemberTable:
    """All other members. One without workers of its own looks at every area, others at theirs and at one."""

    def __init__(self, me: ContinuumMember) -> None:
        self.me = me
        self.peers: dict[NodeId, MemberState] = {}
        self.neighbours: list[MemberState] = []  # of our area, those that run calls; nearest first
        self.remote: list[MemberState] = []  # of the remote area, likewise
        self._shown: tuple[list[MemberState], list[MemberState]] = ([], [])  # of both, those that a view has
        self._order = 0  # goes up when those change
        self._stamp = 0  # goes up when anything does
        self._sights: dict[FunctionName, _Sight] = {}

    # Who there is

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
        if shown != self._shown:
            self._shown = shown
            self._order += 1

    # What they are like

    def update_load(self, peer: MemberState, standing: MemberLoad, mine: Coordinate, now: float) -> None:
        """`peer` says that it is so. What cannot be is cut down to what can."""
        member = peer.member
        peer.memory_free = min(standing.memory_free, member.memory)
        peer.cpus_free = standing.cpus_free if 0.0 <= standing.cpus_free <= member.cpus else member.cpus
        peer.waiting = standing.waiting
        peer.warm = dict(standing.warm)
        peer.coordinate = standing.coordinate if is_sound(standing.coordinate) else START
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
        """A call goes there: it takes its room long before the peer reports it."""
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

    def seen(self, now: float) -> list[MemberStatus]:
        """Everybody, for people to look at: those whom a policy may choose first, nearest first."""
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
        sight = self._sights.get(function)
        if sight is None or now >= sight.until:
            if len(self._sights) >= _SIGHTS:
                self._sights.clear()
            sight = self._sights[function] = _Sight(now + _FRESH_S)
        if sight.order != self._order:
            neighbours, remote = self._shown
            sight.neighbours = tuple([_place(peer, function, now) for peer in neighbours])
            sight.remote = tuple([_place(peer, function, now) for peer in remote])
            sight.order, sight.stamp = self._order, self._stamp
        elif sight.stamp != self._stamp:
            neighbours, remote = self._shown
            sight.neighbours = _renewed(sight.neighbours, neighbours, sight.stamp, function, now)
            sight.remote = _renewed(sight.remote, remote, sight.stamp, function, now)
            sight.stamp = self._stamp
        return CandidateView(here, sight.neighbours, sight.remote)


def _by_distance(peer: MemberState) -> float:
    return peer.rtt_s


def _nearest_up(peers: list[MemberState]) -> list[MemberState]:
    return [peer for peer in peers if peer.is_up][:_SHOWN]


def _renewed(
    before: tuple[Candidate, ...], peers: list[MemberState], stamp: int, function: FunctionName, now: float
) -> tuple[Candidate, ...]:
    """The places with those made anew that have changed since `stamp`."""
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
