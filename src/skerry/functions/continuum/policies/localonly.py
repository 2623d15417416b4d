"""`localonly`: here and now, or not at all: calls do not wait, and get an error at once if the node is
full."""

from __future__ import annotations

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policy import RUN, RejectCall, RoutingDecision

_FULL = RejectCall("this node has no capacity for it now; call another one, or this one again later")


class LocalOnly:
    """Waits only for the start of a worker, and only if there is capacity for one."""

    name = "localonly"

    def decide(self, demand: CallDemand, view: CandidateView, call_times: CallTimeModel) -> RoutingDecision:
        here = view.here
        # A call that could never run here is left to the queue, whose error has the limits.
        return RUN if here.has_room(demand) or not here.could_ever_run(demand) else _FULL
