"""`edgeonly`: here if there is capacity, else at a member of our area that has some, else here in the
queue."""

from __future__ import annotations

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policies import ranking
from skerry.functions.continuum.policy import RUN, RoutingDecision


class EdgeOnly:
    """Never leaves the area."""

    name = "edgeonly"

    def decide(self, demand: CallDemand, view: CandidateView, call_times: CallTimeModel) -> RoutingDecision:
        if not demand.may_leave or view.here.has_room(demand):
            return RUN
        return ranking.offload(ranking.with_capacity(view.neighbours, demand), view.here)
