"""What a node may decide to do with a call that arrives.

A `RoutingPolicy` makes a `RoutingDecision` of the call and the nodes around it
(`skerry.functions.continuum.candidates`) with what was learnt (`skerry.functions.continuum.call_time_model`).
If a place refuses the call, the next of the decision is tried.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from msgspec import Struct

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.model.ids import NodeId


class RunHere(Struct, frozen=True, gc=False):
    """Here: at once, or in its turn; the queue of this node may still refuse it."""


class Offload(Struct, frozen=True):
    """At `node`, and if that refuses or does not answer, at those of `or_else`, in order.

    Our own node among these means here, at once or in its turn. If all of them refuse, the call is refused.
    """

    node: NodeId
    or_else: tuple[NodeId, ...] = ()


class RejectCall(Struct, frozen=True):
    """Nowhere; `reason` is for whoever called and says what would have helped."""

    reason: str


RoutingDecision: TypeAlias = RunHere | Offload | RejectCall

RUN = RunHere()  # there is nothing to tell two of them apart


class RoutingPolicy(Protocol):
    """Decides where calls run.

    It is asked for every call, on the node's only thread: it must be quick, never wait, and keep nothing of
    what it is given. It offloads only what `may_leave`, and only to places of the view that are up; a
    decision that breaks this is a fault of the policy, and the call then runs here.
    """

    @property
    def name(self) -> str: ...

    def decide(self, demand: CallDemand, view: CandidateView, learnt: CallTimeModel) -> RoutingDecision: ...
