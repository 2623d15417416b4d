"""`default`: every call runs here, at once or in its turn; when too many wait, the queue refuses it."""

from __future__ import annotations

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policy import RUN, RoutingDecision


class DefaultPolicy:
    """Never looks at other nodes."""

    name = "default"

    def decide(self, demand: CallDemand, view: CandidateView, learnt: CallTimeModel) -> RoutingDecision:
        return RUN
