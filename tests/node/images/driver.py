"""Images in a process of their own that is killed, as by `kill -9`, when a step is reached for the Nth time.

Its arguments are FOLDER STEP TIMES CALL... See `tests.support.drivers`.

A call is `pull:REFERENCE`, `remove:REFERENCE` or `collect:`; each that is done is said.
"""

from __future__ import annotations

import sys
from pathlib import Path

from skerry.kit.clock import SystemClock
from skerry.model.image_settings import ImageSettings
from skerry.model.images import Platform
from skerry.node.images.images import Images
from skerry.node.layers.unpacker_client import LayerUnpacker
from tests.support.drivers import Death


async def main(folder: str, step: str, times: str, *calls: str) -> None:
    images = await Images.open(
        Path(folder),
        ImageSettings(parallel=1),
        SystemClock(),
        platform=Platform(),
        unpacker=LayerUnpacker(),
        failpoint=Death(step, int(times)),
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
