"""An agent in a process of its own: does what its input says, line by line, and says when each is done.

Its arguments are FOLDER KEY SETTINGS [STEP TIMES]. See `tests.support.drivers`.

With STEP it kills itself, as `kill -9` would, when that step of `skerry.node.network` is reached for the
TIMESth time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import msgspec

from skerry.kit.clock import SystemClock
from skerry.model import ports
from skerry.model.network import Egress, Ingress, NetworkPolicy
from skerry.model.settings import NetworkSettings
from skerry.node.network.network import Network
from tests.node.network.machines import pool_of
from tests.support.drivers import Death
from tests.support.waiting import eventually


def send(what: str) -> None:
    sys.stdout.write(what + "\n")
    sys.stdout.flush()


async def do(network: Network, verb: str, *rest: str) -> None:
    match verb:
        case "fill":
            running = asyncio.create_task(network.run())
            await eventually(lambda: len(pool_of(network)._ready) >= network._settings.pool)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        case "attach":
            owner, *mappings = rest
            await network.attach(owner, [ports.parse(text) for text in mappings])
            await network.publish(owner)
        case "seclude":
            (owner,) = rest
            await network.attach(owner, is_isolated=True)
        case "hold":
            (owner,) = rest
            await network.attach(owner, policy=NetworkPolicy(Ingress.NODE, Egress.INTERNET))
        case "restrict":
            (owner,) = rest
            await network.restrict(owner, NetworkPolicy(egress=Egress.INTERNET))
        case "detach":
            await asyncio.gather(*(network.detach(owner) for owner in rest))
        case "close":
            await network.close()


async def main(folder: str, key: str, settings: str, step: str = "", times: str = "0") -> None:
    network = await Network(
        Path(folder),
        msgspec.json.decode(settings, type=NetworkSettings),
        SystemClock(),
        key=key,
        failpoint=Death(step, int(times)),
    ).open()
    send("open")
    for line in sys.stdin:
        verb, *rest = json.loads(line)
        await do(network, verb, *rest)
        send(verb)
