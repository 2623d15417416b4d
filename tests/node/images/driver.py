"""Images in a process of their own that is killed, as by `kill -9`, when a step is reached for the Nth time.

    python -m tests.node.images.driver FOLDER STEP TIMES CALL...

A call is `pull:REFERENCE`, `remove:REFERENCE` or `collect:`; each that is done is said.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import structlog

from skerry.kit.clock import SystemClock
from skerry.model.images import Platform
from skerry.model.settings import ImageSettings
from skerry.node.images.images import Images
from skerry.node.layers.unpacker_client import LayerUnpacker


class Death:
    """Counts one step, and dies of it."""

    def __init__(self, step: str, times: int) -> None:
        self.step = step
        self.left = times

    def __call__(self, step: str) -> None:
        self.left -= step == self.step
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def main(folder: str, step: str, times: str, *calls: str) -> None:
    images = await Images.open(
        Path(folder),
        ImageSettings(parallel=1),
        SystemClock(),
        platform=Platform(),
        unpacker=LayerUnpacker(),
        reached=Death(step, int(times)),
    )
    for call in calls:
        verb, _, what = call.partition(":")
        match verb:
            case "pull":
                await images.pull(what)
            case "remove":
                await images.remove(what)
            case "collect":
                await images.collect()
        sys.stdout.write(f"{call}\n")
        sys.stdout.flush()
    await images.close()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(main(*sys.argv[1:]))
