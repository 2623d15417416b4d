"""`localonly`: here and now, or not at all: nothing waits, and whoever called hears at once if it is full."""

from __future__ import annotations

from skerry.functions.continuum.call_time_model import CallTimeModel
from skerry.functions.continuum.candidates import CallDemand, CandidateView
from skerry.functions.continuum.policy import RUN, RejectCall, RoutingDecision

_FULL = RejectCall("this node has no room for it at this moment; call another one, or this one again later")


class LocalOnly:
    """Waits only for the start of a worker, and only if there is room for one."""

    name = "localonly"

    def decide(self, demand: CallDemand, view: CandidateView, learnt: CallTimeModel) -> RoutingDecision:
        here = view.here
        # What could never run here is left to the queue, which says what it would take.
        return RUN if here.has_room(demand) or not here.could_ever_run(demand) else _FULL
