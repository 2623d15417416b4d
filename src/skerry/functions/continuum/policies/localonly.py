"""`localonly`: here and now, or not at all: nothing waits, and whoever called hears at once if it is full."""

from __future__ import annotations

from skerry.functions.continuum.learning import Learnt
from skerry.functions.continuum.views import RUN, Decision, Demand, Drop, View

_FULL = Drop("this node has no room for it at this moment; call another one, or this one again later")


class LocalOnly:
    """Waits only for the start of a worker, and only if there is room for one."""

    name = "localonly"

    def decide(self, demand: Demand, view: View, learnt: Learnt) -> Decision:
        here = view.here
        # What could never run here is left to the queue, which says what it would take.
        return RUN if here.has_room(demand) or not here.could_ever_run(demand) else _FULL
