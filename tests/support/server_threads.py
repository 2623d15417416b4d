"""A server in a thread of the test, for tests of the command line."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import structlog
from click.testing import CliRunner, Result

from skerry.cli import main
from skerry.kit import pki
from tests.support.waiting import PATIENCE_S

T = TypeVar("T")
S = TypeVar("S", bound="ServerThread")


class ServerThread:
    """A server in a thread, with a data folder whose ready file names it.

    A subclass defines `serve`, which calls `started` with the address and waits for its end; `group` is the
    command group of `cli`.
    """

    group: str

    def __init__(self, folder: Path, authority: pki.CertificateAuthority) -> None:
        self.authority = authority
        self.folder = folder
        self.data = folder / "data"
        self.url = ""
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self: S) -> S:
        self._thread.start()
        assert self._up.wait(PATIENCE_S)
        self.data.mkdir()
        (self.data / "ready.json").write_text(json.dumps({"pid": os.getpid(), "http": self.url, "ca": ""}))
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def serve(self) -> None:
        raise NotImplementedError

    async def started(self, url: str) -> None:
        """Let the test go on, and wait until it has ended."""
        self.url = url
        self._up.set()
        await self._stop.wait()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        with structlog.testing.capture_logs():
            await self.serve()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which runs in the loop of the server."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def cli(self, *arguments: str, stdin: str = "") -> Result:
        clean = {name: None for name in os.environ if name.startswith("SKERRY_")}
        env = {**clean, "SKERRY_DATA": str(self.data)}
        return CliRunner().invoke(main.cli, [self.group, *arguments], env=env, input=stdin)

    def say(self, *arguments: str, stdin: str = "") -> str:
        """The output of a command, which must succeed."""
        result = self.cli(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout
