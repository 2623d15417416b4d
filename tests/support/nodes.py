"""A node in a thread, over fakes, for tests of the command line; and the command as a process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack, closing
from pathlib import Path
from typing import IO, Any, Protocol

import structlog
from click.testing import CliRunner, Result

from skerry.cli import main
from tests.support.certificates import TestAuthority
from tests.support.skerry import COMMAND, environment
from tests.support.waiting import PATIENCE_S

Serve = Callable[[Path, TestAuthority, Any], AbstractAsyncContextManager[Any]]


class Node:
    """A node in a thread, with a data folder that says where it is.

    `make` makes the fake that keeps its things in a folder, and `serve` serves it.
    """

    def __init__(
        self, folder: Path, authority: TestAuthority, make: Callable[[Path], Any], serve: Serve
    ) -> None:
        self._folder = folder
        self._authority = authority
        self._make = make
        self._serve_keeper = serve
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.data = folder / "data"

    def __enter__(self) -> Node:
        self._quiet = ExitStack()
        self._quiet.enter_context(structlog.testing.capture_logs())
        self._thread.start()
        assert self._up.wait(PATIENCE_S)
        pair = self._authority.issue("operator", "admin")
        ready = {
            "pid": os.getpid(),
            "socket": str(self.served.path),
            "ca": str(self._authority.ca),
            "client_cert": str(pair.certificate),
            "client_key": str(pair.key),
        }
        self.data.mkdir()
        (self.data / "ready.json").write_text(json.dumps(ready))
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._loop.call_soon_threadsafe(self._restart.set)
        self._thread.join()
        self._quiet.close()

    async def _serve(self) -> None:
        self._loop, self._stop, self._restart = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        self.keeper = self._make(self._folder / "output")
        with closing(self.keeper):
            while not self._stop.is_set():
                async with self._serve_keeper(self._folder, self._authority, self.keeper) as served:
                    self.served = served
                    self._up.set()
                    await self._restart.wait()
                    self._restart.clear()

    def restart(self) -> None:
        """The agent goes and comes again; its cells go on meanwhile."""
        self._up.clear()
        self._loop.call_soon_threadsafe(self._restart.set)
        assert self._up.wait(PATIENCE_S)

    def do(self, work: Callable[[], Any]) -> Any:
        """`work` on the node's own thread."""

        async def doing() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(doing(), self._loop).result(PATIENCE_S)

    def cli(self, *arguments: str) -> Result:
        clean = {name: None for name in os.environ if name.startswith("SKERRY_")}
        return CliRunner().invoke(main.cli, list(arguments), env={**clean, "SKERRY_DATA": str(self.data)})

    def json(self, *arguments: str) -> Any:
        result = self.cli(*arguments, "-o", "json")
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)


class Running(Protocol):
    """What a command is pointed at."""

    data: Path


class Command:
    """The command as a process of its own, ended if the test is not done with it."""

    def __init__(self, node: Running, *arguments: str, **popen: Any) -> None:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._process = subprocess.Popen(
            [*COMMAND, *arguments], env=environment(SKERRY_DATA=str(node.data)), **(streams | popen)
        )

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self._process

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def read_until(pipe: IO[bytes] | None, text: bytes) -> bytes:
    """What comes through the pipe, up to the line with `text`."""
    assert pipe is not None
    said = b""
    while text not in said:
        line = pipe.readline()
        assert line, f"it ended with {said!r}"
        said += line
    return said
