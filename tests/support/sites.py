"""A server in a thread, for tests of the command line: the real control plane over HTTP, an obedient node."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog
from click.testing import CliRunner, Result

from skerry.cli import main, watch
from skerry.control.sessions.tunnels import TunnelEndpoint
from skerry.kit import pki
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.orders import InstanceOrder
from skerry.model.statuses import InstanceStatus
from skerry.transport import unix_sockets
from tests.control.worlds import deeds
from tests.support.controls import Control
from tests.support.far_nodes import FarNode, Play
from tests.support.waiting import PATIENCE_S
from tests.transport.http.conftest import Site, serving

T = TypeVar("T")

NODE = "n1"
_BEAT_S = 1.0


async def says_nothing(end: TunnelEndpoint) -> None:
    """An instance that has written nothing."""


class CloudServer:
    """A server with one node, which does at once what it is ordered, and a data folder that says where it is:
    on a unix socket, as nothing answers at the address beside it.

    Instances called `broken` fail, those called `crashing` have crashed, those called `slow` stay STARTING
    until `hurry`. What comes through a tunnel is what `play` makes of it.
    """

    def __init__(self, folder: Path, authority: pki.CertificateAuthority, play: Play = says_nothing) -> None:
        self._authority = authority
        self._play = play
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._is_hurried = False
        self.data = folder / "data"
        self._socket = self.data / "http.sock"

    def __enter__(self) -> CloudServer:
        self._undo = ExitStack()
        self._undo.enter_context(structlog.testing.capture_logs())
        # A server that shares a busy process with who asks it would be asked more and more seldom.
        asking = self._undo.enter_context(pytest.MonkeyPatch.context())
        asking.setattr(watch, "_SHARE", 1)
        asking.setattr(watch, "_SOON_S", 0.02)
        self.data.mkdir()
        self._thread.start()
        assert self._up.wait(PATIENCE_S)
        ready = {
            "pid": os.getpid(),
            "role": "server",
            "http": "https://127.0.0.1:9",
            "http_socket": str(self._socket),
        }
        (self.data / "ready.json").write_text(json.dumps(ready))
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

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of `work`, done in the loop of the server."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def hurry(self) -> None:
        """What is slow starts now."""
        self._is_hurried = True
        self._loop.call_soon_threadsafe(self._changed.set)

    def cli(self, *arguments: str, typed: str | None = None) -> Result:
        """A verb; `typed` is its standard input."""
        clean = {name: None for name in os.environ if name.startswith("SKERRY_")}
        env = {**clean, "SKERRY_DATA": str(self.data)}
        return CliRunner().invoke(main.cli, list(arguments), env=env, input=typed)

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
            self._site.server.listen_unix(self._socket, unix_sockets.SocketPermissions(0o600))
            await self.control.join(NODE)
            node = asyncio.ensure_future(self._obey())
            self._up.set()
            await self._stop.wait()
            await cancel_and_wait([node])
        await self.far.close()

    async def _obey(self) -> None:
        self.control.instances.listen(lambda before, after: self._changed.set())
        while True:
            self._changed.clear()
            self.control.nodes.heartbeats.received(NodeId(NODE))
            await self.control.nodes.heartbeats.publish()
            for order in list(self.control.instances.orders(NodeId(NODE))):
                with suppress(errors.SkerryError):  # it is gone or is ordered anew meanwhile
                    await self._do(order)
            try:
                async with asyncio.timeout(_BEAT_S):
                    await self._changed.wait()
            except TimeoutError:
                pass  # time to be heard again

    async def _do(self, order: InstanceOrder) -> None:
        now = self.control.instances.get(order.instance).observed.status
        wanted = deeds(order, now)
        if order.spec.name == "broken" and InstanceStatus.RUNNING in wanted:
            await self.control.report(order.instance, InstanceStatus.STARTING)
            await self.control.report(order.instance, InstanceStatus.FAILED, reason="there is no such image")
        elif order.spec.name == "crashing" and InstanceStatus.RUNNING in wanted:
            if now is not InstanceStatus.CRASHED:
                # In one report, so that nobody sees it RUNNING, which a command may wait for.
                await self.control.report(
                    order.instance,
                    InstanceStatus.CRASHED,
                    reason="ended with code 3",
                    exit_code=3,
                    restarts=7,
                    retry_at=time.time() + 150,
                )
        elif order.spec.name == "slow" and InstanceStatus.RUNNING in wanted and not self._is_hurried:
            if now is not InstanceStatus.STARTING:
                await self.control.report(
                    order.instance, InstanceStatus.STARTING, reason="pulling a large image"
                )
        elif order.spec.name == "unready":
            why = "readiness check http:80/health failed: HTTP 503 (3 times)"
            await self.control.report(order.instance, *wanted, has_passed=False, check_message=why)
        else:
            await self.control.report(order.instance, *wanted, ip="10.64.0.2")
