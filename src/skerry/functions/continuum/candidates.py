"""Inputs of routing policies: a call, and the members where it may run.

A `CallDemand` is the call, a `CandidateView` the members at one moment. The node or the simulator builds
them; policies (`skerry.functions.continuum.policy`) read only these. Views are outdated when they are read: a
member may refuse a call that it seemed to have capacity for.
"""

from __future__ import annotations

from msgspec import Struct

from skerry.model.ids import FunctionName, NodeId


class CallDemand(Struct, frozen=True, gc=False):
    """A call that has to run somewhere, as far as that matters for where."""

    function: FunctionName
    memory: int  # MB of a worker; above 0
    cpu: float  # cores of a worker; 0: it has no cap
    params_bytes: int = 0
    qos_class: int = 0
    deadline_s: float | None = None  # the remaining time; None: no limit
    may_offload: bool = True
    hops_left: int = 1  # how many nodes more it may be handed on to
    is_idempotent: bool = False  # it may be run twice

    @property
    def may_leave(self) -> bool:
        return self.may_offload and self.hops_left > 0


class Candidate(Struct, frozen=True, gc=False):
    """A node where a function may run, as one call sees it."""

    node: NodeId
    area: str
    is_here: bool
    memory_total: int  # MB for workers
    memory_free: int  # of those, what no worker has or an idle one would give up
    cpus_total: float
    cpus_free: float
    warm: int = 0  # idle workers of the function that is called
    waiting: int = 0  # calls in its queue
    rtt_s: float = 0.0  # a round trip to it, as measured or predicted; 0 here
    is_up: bool = True
    heard_s: float = 0.0  # how old this knowledge is
    seats: int = 0  # calls more that busy workers of the function would take beside theirs

    def could_ever_run(self, demand: CallDemand) -> bool:
        """False if even the empty node is too small for a worker of it."""
        return demand.memory <= self.memory_total and demand.cpu <= self.cpus_total

    def has_room(self, demand: CallDemand) -> bool:
        """True if it is up and the call need not wait for another call's end, but perhaps for the start of a
        worker. Waiting calls do not matter: their workers may be starting, and have their capacity already.
        """
        return self.is_up and (
            (demand.memory <= self.memory_free and demand.cpu <= self.cpus_free) or self.seats > 0
        )


class CandidateView(Struct, frozen=True):
    """All places that a call may run at."""

    here: Candidate
    neighbours: tuple[Candidate, ...] = ()  # the other nodes of our area, nearest first
    remote: tuple[Candidate, ...] = ()  # the nodes of the remote area, nearest first
