"""`default`: every call runs here, at once or from the queue; when too many wait, it is refused."""

from __future__ import annotations

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policy import RUN, RoutingDecision


class DefaultPolicy:
    """Never uses other members."""

    name = "default"

    def decide(self, demand: CallDemand, view: CandidateView, call_times: CallTimeModel) -> RoutingDecision:
        return RUN
