"""What a fleet costs those who have a small one."""

from __future__ import annotations

import subprocess
import sys

import pytest

GROW = """
import sys
from skerry.model.ids import NodeId
from skerry.model.resources import Resources
from skerry.schedule import explanations
from skerry.schedule.requests import NodeView, PlacementPolicy, PlacementRequest
from skerry.schedule.scheduler import COLUMNAR_FROM, Scheduler
fleet = Scheduler()
for number in range(COLUMNAR_FROM - 1 + {more}):
    fleet.set_node(NodeView(NodeId(str(number)), Resources(1000, 1000, 10)))
fleet.place(PlacementRequest("web"), PlacementPolicy.SPREAD)
sys.stdout.write(str("numpy" in sys.modules))
"""


@pytest.mark.parametrize(("more", "is_imported"), [(0, "False"), (1, "True")])
def test_numpy_is_imported_only_by_a_large_fleet(more: int, is_imported: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROW.format(more=more)], capture_output=True, text=True, check=True
    )
    assert done.stdout == is_imported
