"""`edgecloud`: here if there is capacity, else in the remote area; if that is full too, where the fewest
calls wait."""

from __future__ import annotations

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policies import ranking
from skerry.functions.continuum.policy import RUN, RoutingDecision


class EdgeCloud:
    """Uses no members of its own area: an edge node with its cloud."""

    name = "edgecloud"

    def decide(self, demand: CallDemand, view: CandidateView, call_times: CallTimeModel) -> RoutingDecision:
        here = view.here
        if not demand.may_leave or here.has_room(demand):
            return RUN
        places = ranking.with_capacity(view.remote, demand)
        if not places:
            able = ranking.least_crowded(ranking.able((here, *view.remote), demand))
            if not able or able[0].is_here:
                return RUN
            places = able
        return ranking.offload(places, here)
