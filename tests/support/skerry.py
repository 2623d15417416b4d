"""A real Skerry in a process of its own, on free ports and a folder of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.forking import ForkedProcess, fork_server
from tests.support.shares import subnet_of
from tests.support.waiting import PATIENCE_S, eventually_sync

COMMAND = [sys.executable, "-m", "skerry"]
NOBODY = 65534
# The default, for tests of functions. Others have none: they cost much of a start and a stop.
PREPARED_WORKERS = ("--set", "functions.spare_workers=3")


def environment(**more: str) -> dict[str, str]:
    """The environment without settings that a person may have exported."""
    return {k: v for k, v in os.environ.items() if not k.startswith("SKERRY_")} | more


def unprivileged(*command: str) -> list[str]:
    """`command` as another user, who may read our Python wherever it is installed, and no more."""
    privilege = "+dac_read_search"
    return [
        "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
        f"--inh-caps={privilege}", f"--ambient-caps={privilege}", *command,
    ]  # fmt: skip


def ask(
    connection: http.client.HTTPConnection,
    verb: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    """One HTTP request; status and JSON (or text)."""
    data = None if body is None else json.dumps(body).encode()
    connection.request(verb, path, body=data, headers=headers or {})
    response = connection.getresponse()
    text = response.read().decode()
    try:
        return response.status, json.loads(text)
    except ValueError:
        return response.status, text


class Skerry:
    """`skerry ROLE` in a process of its own: forked, or executed if there are options for `Popen`."""

    cgroup_root = "skerry"  # the setting node.cgroup_root

    def __init__(self, folder: Path, *flags: str, role: str = "up", **popen: Any) -> None:
        self.data = folder / "data"
        self.ready_file = folder / "ready.json"
        self.log = folder / "log"
        self.ready_file.unlink(missing_ok=True)
        listen = [] if role == "node" else ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
        socket = ["--socket", str(folder / "s.sock")]
        # Two on one machine cannot have the same addresses.
        self.subnet = subnet_of(folder)
        network = ["--set", f"network.subnet={self.subnet}"]
        workers = ["--set", "functions.spare_workers=0"]
        paths = ["--data", str(self.data), "--ready-file", str(self.ready_file)]
        arguments = [role, *paths, *listen, *socket, *network, *workers, *flags]
        env = popen.pop("env", environment())
        self.process: ForkedProcess | subprocess.Popen[bytes]
        with self.log.open("ab") as log:
            if not popen:
                self.process = fork_server.start(arguments, env, log.fileno())
                return
            self.process = subprocess.Popen(
                [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, **popen
            )

    def wait_ready(self, within: float = PATIENCE_S) -> dict[str, Any]:
        """What the ready file says, once it is there."""

        def ready() -> bool:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.said()}"
            return self.ready_file.exists()

        eventually_sync(ready, within=within, what="the ready file")
        ready_file: dict[str, Any] = json.loads(self.ready_file.read_text())
        self.ready = ready_file
        return ready_file

    def said(self) -> str:
        return self.log.read_text()

    def stop(self, within: float = PATIENCE_S) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def connect(self) -> http.client.HTTPConnection:
        """A connection to its HTTP port, for `ask`; to be closed."""
        split = urlsplit(self.ready["http"])
        host, port = split.hostname or "", split.port
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        if split.scheme == "https":
            context = ssl.create_default_context(cafile=self.ready["ca"])
            connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE_S, context=context)
        connection.connect()
        return connection

    def call(
        self, verb: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """One HTTP request; status and JSON (or text)."""
        with contextlib.closing(self.connect()) as connection:
            return ask(connection, verb, path, body, headers)

    def cli(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A verb of the command line, pointed at this one."""
        return fork_server.run(arguments, environment(**{"SKERRY_DATA": str(self.data), **more}))


@contextlib.contextmanager
def running(folder: Path, *flags: str, **options: Any) -> Iterator[Skerry]:
    """A Skerry that is ready, stopped at the end."""
    skerry = Skerry(folder, *flags, **options)
    try:
        skerry.wait_ready()
        yield skerry
        assert skerry.stop() == 0, skerry.said()
    finally:
        if skerry.process.poll() is None:
            skerry.kill()
