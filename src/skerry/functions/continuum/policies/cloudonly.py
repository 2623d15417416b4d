"""`cloudonly`: every call goes to the remote area, and runs here only if nobody there takes it or is up.

A node without a remote area, such as those of the cloud itself, runs its calls here.
"""

from __future__ import annotations

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policies import ranking
from skerry.functions.continuum.policy import RUN, RoutingDecision


class CloudOnly:
    """Where there is room first; else where the fewest wait."""

    name = "cloudonly"

    def decide(self, demand: CallDemand, view: CandidateView, learnt: CallTimeModel) -> RoutingDecision:
        if not demand.may_leave:
            return RUN
        places = ranking.roomy(view.remote, demand) or ranking.least_crowded(
            ranking.able(view.remote, demand)
        )
        return ranking.offload(places, view.here)
