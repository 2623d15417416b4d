"""Routing policies and their decisions.

A `RoutingPolicy` makes a `RoutingDecision` from the call and the members around
(`skerry.functions.continuum.candidates`) and the call time model
(`skerry.functions.continuum.call_time_model`). If a member refuses the call, the next of the decision is
tried.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

from msgspec import Struct

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.model.ids import NodeId


class RunHere(Struct, frozen=True, gc=False):
    """Run it here: at once, or from the queue, which may still refuse it."""


class Offload(Struct, frozen=True):
    """Run it at `node`, and if that refuses or does not answer, at those of `or_else`, in order.

    Our own node among these means here, at once or from the queue. If all of them refuse, the call is
    refused.
    """

    node: NodeId
    or_else: tuple[NodeId, ...] = ()


class RejectCall(Struct, frozen=True):
    """Refuse it; `reason` is for the caller and says what to do."""

    reason: str


RoutingDecision: TypeAlias = RunHere | Offload | RejectCall

RUN = RunHere()  # all instances are equal


class RoutingPolicy(Protocol):
    """Decides where calls run.

    It is called for every call, on the node's only thread: it must be fast, never wait, and keep none of its
    arguments. It offloads only what `may_leave`, and only to places of the view that are up; a decision that
    breaks this is a fault of the policy, and the call then runs here.
    """

    @property
    def name(self) -> str: ...

    def decide(
        self, demand: CallDemand, view: CandidateView, call_times: CallTimeModel
    ) -> RoutingDecision: ...
