"""A node that lends a cell, in a process of its own: a guest begins in it, and then the agent is killed.

Its arguments are FOLDER IMAGE ROOT. See `tests.support.drivers`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.node.agent.instances.driver import shorten_waits
from tests.node.cells.driver import send
from tests.node.containers.real import Ground
from tests.node.guests.real import guests_order, lender


async def main(folder: str, image: str, root: str) -> None:
    ground = Ground(Path(folder), Path(image), root)
    shorten_waits(ground)
    async with lender(ground) as here:
        await here.lend()
        buyer = here.buyer()
        await buyer.order(guests_order())
        await buyer.until("RUNNING")
        (view,) = here.agent.containers.list()
        send(launcher=here.agent.launcher, pid=view.pid)
        os.kill(os.getpid(), signal.SIGKILL)
