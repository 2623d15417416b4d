"""An agent in a process of its own: does what its input says, line by line, and says when each is done.

Its arguments are FOLDER ROOT [STEP TIMES]. See `tests.support.drivers`.

With STEP it kills itself, as `kill -9` would, when that step of `skerry.node.cells` is reached for the
TIMESth time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from skerry.kit.clock import SystemClock
from skerry.model.cells import Cell, CellLimits, Executable
from skerry.model.ids import CellName, ExecutableName
from skerry.model.settings import NodeSettings
from skerry.node.cells.cells import Cells
from skerry.node.cgroups.detection import detect
from skerry.node.launcher.client import LauncherClient
from tests.support.drivers import Death


def send(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def do(cells: Cells, verb: str, cell: str, *rest: str) -> int:
    """The pid if something was started, else 0."""
    match verb:
        case "allocate":
            await cells.allocate(Cell(CellName(cell), CellLimits(cpu_quota=int(rest[0]) if rest else None)))
        case "lift":  # quotas for starts, as where no init can leave its group of one
            type(cells._deps.groups).can_leave_cpu_quota = property(lambda _: False)  # type: ignore[misc,assignment]
        case "free":
            await cells.free(CellName(cell))
        case "start":
            started = await cells.start(Executable(ExecutableName(rest[0]), CellName(cell), rest[1]))
            return started.pid
        case "stop":
            await cells.stop(CellName(cell), ExecutableName(rest[0]))
    return 0


async def main(folder: str, root: str, step: str = "", times: str = "0") -> None:
    launcher = await LauncherClient.start()
    cells = await Cells.open(
        Path(folder), detect(root), launcher, NodeSettings(), SystemClock(), failpoint=Death(step, int(times))
    )
    send(launcher=launcher.pid)
    for line in sys.stdin:
        send(pid=await do(cells, *json.loads(line)))
    await cells.close()
    await launcher.stop()
