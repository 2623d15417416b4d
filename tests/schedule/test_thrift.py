"""What a fleet costs those who have a small one."""

from __future__ import annotations

import subprocess
import sys

import pytest

GROW = """
import sys
from skerry.model.ids import NodeId
from skerry.model.room import Room
from skerry.schedule import explaining
from skerry.schedule.asks import Ask, NodeView, Policy
from skerry.schedule.fleet import MANY, Fleet
fleet = Fleet()
for number in range(MANY - 1 + {more}):
    fleet.set_node(NodeView(NodeId(str(number)), Room(1000, 1000, 10)))
fleet.place(Ask("web"), Policy.SPREAD)
sys.stdout.write(str("numpy" in sys.modules))
"""


@pytest.mark.parametrize(("more", "is_imported"), [(0, "False"), (1, "True")])
def test_numpy_is_imported_only_by_a_large_fleet(more: int, is_imported: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROW.format(more=more)], capture_output=True, text=True, check=True
    )
    assert done.stdout == is_imported
