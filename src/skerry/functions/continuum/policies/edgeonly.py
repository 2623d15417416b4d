"""`edgeonly`: here if there is room, else at a neighbour of our area that has some, else here in its turn."""

from __future__ import annotations

from skerry.functions.continuum.learning import Learnt
from skerry.functions.continuum.policies import ranking
from skerry.functions.continuum.views import RUN, Decision, Demand, View


class EdgeOnly:
    """Never leaves the area."""

    name = "edgeonly"

    def decide(self, demand: Demand, view: View, learnt: Learnt) -> Decision:
        if not demand.may_leave or view.here.has_room(demand):
            return RUN
        return ranking.offload(ranking.roomy(view.neighbours, demand), view.here)
