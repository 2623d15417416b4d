"""Fault rates of a simulation: which faults happen to messages and to the store, and how often.

There is one fault schedule for a whole simulation, and it changes during it. Read by
`skerry.sim.cluster.faulty_store`, between servers and the store, and by `skerry.sim.cluster.agents`, between
nodes and servers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(slots=True)
class FaultSchedule:
    """Shares are of all messages or transactions; delays are at most so long."""

    chance: random.Random
    store_errors: float = 0.0  # half of these transactions happen all the same
    store_delay_s: float = 0.0
    breaks: float = 0.0  # messages after which a node's connection breaks, before or after they arrive
    late: float = 0.0  # batches of a broken connection that arrive after all, when another one is open
    message_delay_s: float = 0.0

    def happens(self, share: float) -> bool:
        return share > 0 and self.chance.random() < share

    def delay(self, at_most_s: float) -> float:
        return self.chance.uniform(0.0, at_most_s) if at_most_s else 0.0

    def clear(self) -> None:
        """No faults and no delays."""
        self.store_errors = self.store_delay_s = self.breaks = self.late = self.message_delay_s = 0.0

    def add_faults(self) -> None:
        """Faults of every kind, now and then."""
        self.store_errors, self.store_delay_s = 0.02, 0.05
        self.breaks, self.late, self.message_delay_s = 0.02, 0.5, 0.2
