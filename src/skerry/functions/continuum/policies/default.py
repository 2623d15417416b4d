"""`default`: every call runs here, at once or in its turn; when too many wait, the queue refuses it."""

from __future__ import annotations

from skerry.functions.continuum.learning import Learnt
from skerry.functions.continuum.views import RUN, Decision, Demand, View


class Default:
    """Never looks at other nodes."""

    name = "default"

    def decide(self, demand: Demand, view: View, learnt: Learnt) -> Decision:
        return RUN
