"""`cloudonly`: every call goes to the remote area, and runs here only if no member there takes it.

A node without a remote area, such as those of the cloud itself, runs its calls here.
"""

from __future__ import annotations

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policies import ranking
from skerry.functions.continuum.policy import RUN, RoutingDecision


class CloudOnly:
    """Members with capacity first; else those with the fewest waiting calls."""

    name = "cloudonly"

    def decide(self, demand: CallDemand, view: CandidateView, call_times: CallTimeModel) -> RoutingDecision:
        if not demand.may_leave:
            return RUN
        places = ranking.with_capacity(view.remote, demand) or ranking.least_crowded(
            ranking.able(view.remote, demand)
        )
        return ranking.offload(places, view.here)
