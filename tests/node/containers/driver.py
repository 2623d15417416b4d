"""An agent in a process of its own: does what its input says, line by line, and says when each is done.

Its arguments are FOLDER IMAGE ROOT [STEP TIMES]. See `tests.support.drivers`.

With STEP it kills itself, as `kill -9` would, when that step is reached for the TIMESth time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from skerry.model.containers import NetworkMode
from skerry.model.ports import PortMapping
from skerry.model.resources import Gigabytes, Resources
from skerry.node.containers.containers import Containers
from tests.node.cells.driver import send
from tests.node.containers.real import Ground, spec
from tests.support.drivers import Death


async def do(containers: Containers, verb: str, *names: str) -> None:
    """Do it to all names at once."""
    work = {"create": create, "start": start, "run": run, "stop": stop, "remove": remove}[verb]
    await asyncio.gather(*(work(containers, name) for name in names))


async def create(containers: Containers, name: str) -> None:
    """With a port and a disk, if its name ends with a number; `alone` has no network; `guest...` is one."""
    if name.startswith("guest"):
        reference = spec(name).image
        known = containers._deps.images.find(reference).id
        await containers.create(
            spec(name, is_isolated=True, shared_disk=1, resources=Resources(disk=Gigabytes(1))), image=known
        )
        return
    number = name.lstrip("abcdefghijklmnopqrstuvwxyz")
    more: dict[str, Any] = {"network": NetworkMode.NONE} if name == "alone" else {}
    if number:
        more = {"ports": (PortMapping(20_000 + int(number), 80),), "resources": Resources(disk=Gigabytes(1))}
    await containers.create(spec(name, **more))


async def start(containers: Containers, name: str) -> None:
    await containers.start(name)


async def run(containers: Containers, name: str) -> None:
    """Both at once; an agent that died may have created it."""
    if any(view.spec.name == name for view in containers.list()):
        await containers.start(name)
    else:
        await containers.create(spec(name), starts=True)


async def stop(containers: Containers, name: str) -> None:
    await containers.stop(name, grace_s=0.01)


async def remove(containers: Containers, name: str) -> None:
    await containers.stop(name, grace_s=0.01)
    await containers.remove(name)


async def main(folder: str, image: str, root: str, step: str = "", times: str = "0") -> None:
    ground = Ground(Path(folder), Path(image), root)
    async with ground.agent(Death(step, int(times))) as agent:
        send(launcher=agent.launcher)
        for line in sys.stdin:
            await do(agent.containers, *json.loads(line))
            send(done=True)
