"""A node that lends a cell, in a process of its own: a guest begins in it, and then the agent is killed.

python -m tests.node.guests.driver FOLDER IMAGE ROOT
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.node.agent.instances.driver import hurry
from tests.node.cells.driver import say
from tests.node.containers.real import Ground
from tests.node.guests.real import guests_order, lender


async def main(folder: str, image: str, root: str) -> None:
    ground = Ground(Path(folder), Path(image), root)
    hurry(ground)
    async with lender(ground) as here:
        await here.lend()
        buyer = here.buyer()
        await buyer.order(guests_order())
        await buyer.until("RUNNING")
        (view,) = here.agent.containers.list()
        say(launcher=here.agent.launcher, pid=view.pid)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    # Logs would mix with what is said.
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(*sys.argv[1:]))
