"""A policy that is not ours, held to what a policy may decide.

Its calls run here if it raises or decides what it may not: a fault in a policy must not lose a call. The
first fault of each kind is logged, since there would be one for every call.
"""

from __future__ import annotations

import structlog

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policy import (
    RUN,
    Offload,
    RejectCall,
    RoutingDecision,
    RoutingPolicy,
    RunHere,
)

log = structlog.get_logger(__name__)


class CheckedPolicy:
    """Whatever `policy` decides, if it may."""

    def __init__(self, policy: RoutingPolicy) -> None:
        self.name = policy.name
        self._policy = policy
        self._reported: set[str] = set()

    def decide(self, demand: CallDemand, view: CandidateView, call_times: CallTimeModel) -> RoutingDecision:
        decision: RoutingDecision = RUN
        raised: Exception | None = None
        try:
            decision = self._policy.decide(demand, view, call_times)
            fault = decision_fault(decision, demand, view)
        except Exception as error:  # noqa: BLE001 - it is not our code
            raised, fault = error, f"it raised {type(error).__name__}"
        if not fault:
            return decision
        if fault not in self._reported:
            self._reported.add(fault)
            log.error("policy.overruled", policy=self.name, because=fault, exc_info=raised)
        return RUN


def decision_fault(decision: object, demand: CallDemand, view: CandidateView) -> str:
    """Why this must not be done with the call; empty if it may."""
    if isinstance(decision, RunHere | RejectCall):
        return ""
    if not isinstance(decision, Offload):
        return f"it decided {type(decision).__name__}, which is no decision"
    if not demand.may_leave:
        return "it offloaded a call that must not leave this node"
    up = {place.node for place in (*view.neighbours, *view.remote) if place.is_up}
    if decision.node not in up:
        return "it offloaded to a node that is down, unknown or this one"
    if not up.issuperset(set(decision.or_else) - {view.here.node}):
        return "it named a node as the next that is down or unknown"
    return ""
