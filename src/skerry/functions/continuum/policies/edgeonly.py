"""`edgeonly`: here if there is room, else at a neighbour of our area that has some, else here in its turn."""

from __future__ import annotations

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policies import ranking
from skerry.functions.continuum.policy import RUN, RoutingDecision


class EdgeOnly:
    """Never leaves the area."""

    name = "edgeonly"

    def decide(self, demand: CallDemand, view: CandidateView, learnt: CallTimeModel) -> RoutingDecision:
        if not demand.may_leave or view.here.has_room(demand):
            return RUN
        return ranking.offload(ranking.roomy(view.neighbours, demand), view.here)
