"""An agent in a process of its own, which starts a worker and dies on the way.

Its arguments are FOLDER ROOT STEP. See `tests.support.drivers`.

It kills itself, as `kill -9` would, when that step of `skerry.node.workers` is reached. What it says before
that, line by line, are the processes that are to end by themselves then.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from tests.node.workers.ground import Ground


def send(*pids: int) -> None:
    sys.stdout.write(" ".join(map(str, pids)) + "\n")
    sys.stdout.flush()


async def main(folder: str, root: str, fatal: str) -> None:
    ground = Ground(Path(folder), has_network=True, root=root)
    ground.settings = msgspec.structs.replace(ground.settings, spare_workers=0)

    def failpoint(step: str) -> None:
        if step == fatal:
            # Of cells, only processes that are no inits: those stay until the next agent comes.
            send(
                *(
                    int(pid)
                    for pid in Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
                )
            )
            os.kill(os.getpid(), signal.SIGKILL)

    async with ground.agent(failpoint) as agent:
        await agent.workers.spawn(ground.function(), ground.folder / "code" / "hello")
