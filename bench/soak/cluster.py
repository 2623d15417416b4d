"""The Skerry that a campaign is about: a server and a node, both kept running as systemd would keep them.

Both are on a machine (network namespace) that has nothing else, so that what they leave there is seen. The
processes of a node are found by their cgroups, from outside.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import remains
from tests.support.clusters import sweep
from tests.support.skerry import Skerry, ask

from skerry.daemon.node_runtime import group_root
from skerry.node.launcher.child import messages

HOST = "192.0.2.1"
NODE = "n1"
SERVER_HTTP, NODE_HTTP, _GRPC, _NEIGHBOURS = 1323, 1324, 50052, 7400
SERVER, AGENT = "server", "agent"
KINDS = (SERVER, AGENT, "launcher", "zygote", "init", "container", "worker")
RESTART_S = 0.2
# Pauses between restarts must not grow over a campaign that crashes the same instance again and again.
_SERVER_SETTINGS = {"fleet.restart_base_s": "0.3", "fleet.restart_cap_s": "1"}
_NODE_SETTINGS = {
    "functions.memory_mb": "256",
    "functions.keep_alive_s": "1",  # so that calls which are rare need a new worker
    "functions.neighbours": f"127.0.0.1:{_NEIGHBOURS}",
    "node.stop_grace_s": "0.5",
}
_CONTAINER = re.compile(r"/@i-[0-9a-z]+/")
_WORKER = re.compile(r"/@functions/w[^/]*/_x")
_ARGUMENTS_OF_A_ZYGOTE = 4  # what follows `-c PROGRAM`: path, descriptor, view, and then what it imports

Document = dict[str, Any]


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, answer: Any) -> None:
        super().__init__(f"{status} {answer}")
        self.status = status
        self.answer = answer


def ask_once(port: int, verb: str, path: str, body: Any = None, **headers: str) -> Any:
    """The answer to a request over a connection of its own. Raises Refused, OSError or HTTPException."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        status, answer = ask(connection, verb, path, body, {"Content-Type": "application/json", **named})
    if status >= 400:
        raise Refused(status, answer)
    return answer


class Supervisor:
    """A server and a node; each is started again when it has ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._killed: set[int] = set()
        self._is_stopping = threading.Event()
        self.unexpected: list[str] = []  # who ended without having been killed
        self.processes: dict[str, Skerry] = {}
        for part in (SERVER, AGENT):
            (folder / part).mkdir()
        self._start(SERVER)
        self.processes[SERVER].wait_ready(60)
        invitation = self.processes[SERVER].cli("token", "create", "--role", "node").stdout.strip()
        self._start(AGENT, "--join", invitation)
        self.processes[AGENT].wait_ready(60)
        self._thread = threading.Thread(target=self._watch, name="supervisor")
        self._thread.start()

    def pids(self, kind: str) -> list[int]:
        """The processes of a kind that there are now, without those that were killed and not yet reaped."""
        return [pid for pid in self._pids(kind) if pid not in self._killed]

    def _pids(self, kind: str) -> list[int]:
        with self._lock:
            main = self.processes.get(kind)
            agent = self.processes[AGENT].process.pid
        if main is not None:
            return [] if main.process.poll() is not None else [main.process.pid]
        if kind in ("launcher", "zygote"):
            launchers = [pid for pid in _children(agent) if _name(pid) == b"skerry-launcher"]
            return [pid for pid in launchers if _is_zygote(pid) == (kind == "zygote")]
        members = _members(group_root("skerry", self._folder / AGENT / "data"))
        inits = {pid for pid in members if _name(pid) == messages.INIT_NAME}
        if kind == "init":
            return sorted(inits)
        pattern = _CONTAINER if kind == "container" else _WORKER
        return sorted(pid for pid, group in members.items() if pid not in inits and pattern.search(group))

    def kill(self, pid: int) -> None:
        """Raises ProcessLookupError if it has ended meanwhile."""
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def stop(self) -> list[str]:
        """Stop both in good order; what is wrong with how they ended and what they left."""
        self._is_stopping.set()
        self._thread.join()
        found = []
        for part in (AGENT, SERVER):
            skerry = self.processes[part]
            try:
                code = skerry.stop(60)
            except subprocess.TimeoutExpired:
                found.append(f"the {part} does not stop within 60 s")
                skerry.kill()
            else:
                found += [f"the {part} ended with {code} when it was stopped"] if code else []
            found += [f"left behind by the {part}: {each}" for each in remains.left_of(skerry)]
        return found

    def sweep(self) -> None:
        """Take away by force whatever is there."""
        self._is_stopping.set()
        self._thread.join()
        for skerry in self.processes.values():
            sweep(skerry)

    def _start(self, part: str, *flags: str) -> None:
        if part == SERVER:
            flags = ("--http", f"127.0.0.1:{SERVER_HTTP}", "--grpc", f"127.0.0.1:{_GRPC}")
            settings: Mapping[str, str] = _SERVER_SETTINGS
        else:
            flags = ("--name", NODE, "--http", f"127.0.0.1:{NODE_HTTP}", *flags)
            settings = _NODE_SETTINGS
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        role = "server" if part == SERVER else "node"
        started = Skerry(self._folder / part, *flags, *words, role=role)
        with self._lock:
            self.processes[part] = started

    def _watch(self) -> None:
        while not self._is_stopping.wait(0.05):
            for part, skerry in tuple(self.processes.items()):
                if (code := skerry.process.poll()) is not None:
                    if skerry.process.pid not in self._killed:
                        self.unexpected.append(f"the {part} ended by itself with {code}: {_last(skerry)}")
                    if not self._is_stopping.wait(RESTART_S):
                        self._start(part)


def _last(skerry: Skerry) -> str:
    return " | ".join(skerry.said().splitlines()[-3:])[-1000:]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


def _name(pid: int) -> bytes:
    return _read(f"/proc/{pid}/comm").strip()


def _children(pid: int) -> Sequence[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in tasks for child in _read(str(path)).split()]


def _is_zygote(pid: int) -> bool:
    words = _read(f"/proc/{pid}/cmdline").rstrip(b"\0").split(b"\0")
    return len(words[words.index(b"-c") + 2 :]) >= _ARGUMENTS_OF_A_ZYGOTE if b"-c" in words else False


def _members(group: str) -> dict[int, str]:
    """Processes in a cgroup or below, and in which."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        where = _read(str(path)).decode().rpartition("0::")[2].strip()
        if f"/{group}/" in where:
            found[int(path.parent.name)] = where
    return found


@contextlib.contextmanager
def supervised(folder: Path) -> Iterator[Supervisor]:
    """Swept away at the end, however that comes."""
    made = Supervisor(folder)
    try:
        yield made
    finally:
        made.sweep()
