"""Agents in a process of their own: do what the input says, line by line, and say what is done.

Its arguments are FOLDER [STEP TIMES]. With STEP it kills itself, as `kill -9` would, when that step is
reached for the TIMESth time. See `tests.support.drivers`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from skerry.model import errors
from skerry.model.volume_tasks import VolumeAction
from tests.node.volumes.agents import Agents
from tests.support.drivers import Death


async def main(folder: str, step: str = "", times: str = "0") -> None:
    agents = Agents(Path(folder), Death(step, int(times)) if step else lambda step: None)
    try:
        for line in sys.stdin.read().splitlines():
            node, action = line.split()
            try:
                if action == "transfer":
                    await agents.transfer()
                else:
                    generation = 1 if action == "remove" else 2
                    await agents.run(node, VolumeAction(action), generation=generation)
            except errors.NotFound:
                print("lost", flush=True)  # noqa: T201
                return
            print(line, flush=True)  # noqa: T201
    finally:
        await agents.close()
