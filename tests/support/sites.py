"""A server in a thread, for tests of the command line: the real control plane over HTTP, an obedient node."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import structlog
from click.testing import CliRunner, Result

from skerry.cli import main
from skerry.control.tunnels import End
from skerry.kit import pki
from skerry.kit.tasks import give_up
from skerry.model.ids import NodeId
from skerry.model.orders import Order
from skerry.model.statuses import Status
from tests.control.worlds import deeds
from tests.support.controls import Control
from tests.support.far_nodes import FarNode, Play
from tests.wire.http.conftest import Site, serving

NODE = "n1"
_BEAT_S = 1.0


async def says_nothing(end: End) -> None:
    """An instance that has written nothing."""


class CloudServer:
    """A server with one node, which does at once what it is ordered, and a data folder that says where it is.

    Instances called `broken` fail, and those called `slow` stay STARTING until `hurry`. What comes through a
    tunnel is what `play` makes of it.
    """

    def __init__(self, folder: Path, authority: pki.Authority, play: Play = says_nothing) -> None:
        self._authority = authority
        self._play = play
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._is_hurried = False
        self.data = folder / "data"

    def __enter__(self) -> CloudServer:
        self._undo = ExitStack()
        self._undo.enter_context(structlog.testing.capture_logs())
        self._thread.start()
        assert self._up.wait(10)
        self.data.mkdir()
        (self.data / "ready.json").write_text(json.dumps({"pid": os.getpid(), "http": self.url, "ca": ""}))
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._undo.close()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    @property
    def url(self) -> str:
        return self._site.url

    @property
    def control(self) -> Control:
        return self._site.control

    def hurry(self) -> None:
        """What is slow starts now."""
        self._is_hurried = True
        self._loop.call_soon_threadsafe(self._changed.set)

    def cli(self, *arguments: str) -> Result:
        clean = {name: None for name in os.environ if name.startswith("SKERRY_")}
        return CliRunner().invoke(main.cli, list(arguments), env={**clean, "SKERRY_DATA": str(self.data)})

    def json(self, verb: str, *arguments: str) -> Any:
        return json.loads(self.say(verb, "-o", "json", *arguments))

    def say(self, *arguments: str) -> str:
        """What a verb prints, which must go well."""
        result = self.cli(*arguments)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    async def _serve(self) -> None:
        self._loop, self._stop, self._changed = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self.far = FarNode(self._play)
        async with serving(self._authority, leads=True, tunnels=self.far) as self._site:
            self._site: Site
            await self.control.join(NODE)
            node = asyncio.ensure_future(self._obey())
            self._up.set()
            await self._stop.wait()
            await give_up([node])
        await self.far.close()

    async def _obey(self) -> None:
        self.control.instances.listen(lambda before, after: self._changed.set())
        while True:
            self._changed.clear()
            self.control.nodes.pulse.heard(NodeId(NODE))
            await self.control.nodes.pulse.beat()
            for order in list(self.control.instances.orders(NodeId(NODE))):
                await self._do(order)
            try:
                async with asyncio.timeout(_BEAT_S):
                    await self._changed.wait()
            except TimeoutError:
                pass  # time to be heard again

    async def _do(self, order: Order) -> None:
        now = self.control.instances.get(order.instance).observed.status
        wanted = deeds(order, now)
        if order.spec.name == "broken" and Status.RUNNING in wanted:
            await self.control.report(order.instance, Status.STARTING)
            await self.control.report(order.instance, Status.FAILED, reason="there is no such image")
        elif order.spec.name == "slow" and Status.RUNNING in wanted and not self._is_hurried:
            if now is not Status.STARTING:
                await self.control.report(order.instance, Status.STARTING, reason="pulling a large image")
        else:
            await self.control.report(order.instance, *wanted, ip="10.64.0.2")
