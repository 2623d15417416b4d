"""An agent in a process of its own: does what its input says, line by line, and says when each is done.

    python -m tests.node.containers.driver FOLDER IMAGE ROOT [STEP TIMES]

With STEP it kills itself, as `kill -9` would, when that step is reached for the TIMESth time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from skerry.model.ports import PortMapping
from skerry.node.containers.containers import Containers
from tests.node.cells.driver import Death, say
from tests.node.containers.real import Ground, spec


async def do(containers: Containers, verb: str, *names: str) -> None:
    """Do it to all names at once."""
    work = {"create": create, "start": start, "stop": stop, "remove": remove}[verb]
    await asyncio.gather(*(work(containers, name) for name in names))


async def create(containers: Containers, name: str) -> None:
    """With a port of its own, if its name ends with a number."""
    number = name.lstrip("abcdefghijklmnopqrstuvwxyz")
    await containers.create(spec(name, ports=(PortMapping(20_000 + int(number), 80),) if number else ()))


async def start(containers: Containers, name: str) -> None:
    await containers.start(name)


async def stop(containers: Containers, name: str) -> None:
    await containers.stop(name, grace_s=0.01)


async def remove(containers: Containers, name: str) -> None:
    await containers.stop(name, grace_s=0.01)
    await containers.remove(name)


async def main(folder: str, image: str, root: str, step: str = "", times: str = "0") -> None:
    ground = Ground(Path(folder), Path(image), root)
    async with ground.agent(Death(step, int(times))) as agent:
        say(launcher=agent.launcher)
        for line in sys.stdin:
            await do(agent.containers, *json.loads(line))
            say(done=True)


if __name__ == "__main__":
    # Logs would mix with what is said.
    import structlog

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(*sys.argv[1:]))
