"""The programs of workers as plain processes: at the other end of a socket, in no cell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import skerry
from skerry.kit.clock import SystemClock
from skerry.kit.response_stream import ResponseStream
from skerry.model.calls import CallResult, WorkerExited
from skerry.model.web_calls import Headers, WebRequestHead, WebResponseHead, encode_request
from skerry.node.workers import worker_channel
from skerry.node.workers.worker_channel import LoadRequest, WorkerChannel

SOURCES = Path(skerry.__file__).parent.parent
NODE = shutil.which("node")
PROGRAM = Path(worker_channel.__file__).with_name("worker.js")
WITHIN_S = 60.0  # far more than anything here takes

# What a launcher does, without cells: a bare interpreter that has the program imported and forks.
_ZYGOTE = """
import os, signal, socket, sys
sys.path.append(sys.argv[1])
import asyncio, random
from skerry.node.workers import python_worker as python
control = socket.socket(fileno=int(sys.argv[2]))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    word, descriptors, _, _ = socket.recv_fds(control, 1, 2)
    if not word:
        os._exit(0)
    pid = os.fork()
    if pid == 0:
        control.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        end, log = descriptors
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        python.main(end)
    for descriptor in descriptors:
        os.close(descriptor)
    control.send(pid.to_bytes(4, "little"))
"""

Start = Callable[[socket.socket, int], int]  # with the worker's end and a log: a pidfd


class Zygote:
    """A bare interpreter that forks Python workers."""

    def __init__(self) -> None:
        self._control, other = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _ZYGOTE, str(SOURCES), str(other.fileno())],
            pass_fds=[other.fileno()],
        )
        other.close()

    def start(self, end: socket.socket, log: int) -> int:
        socket.send_fds(self._control, [b"x"], [end.fileno(), log])
        return os.pidfd_open(int.from_bytes(self._control.recv(4), "little"))

    def close(self) -> None:
        self._control.close()
        self._process.wait()


class Nodes:
    """Starts Node.js workers."""

    def __init__(self) -> None:
        self._pids: list[int] = []

    def start(self, end: socket.socket, log: int) -> int:
        assert NODE is not None, "there is no node: see system-packages.txt"
        places = [(log, 1), (log, 2), (end.fileno(), 3)]
        moves = [(os.POSIX_SPAWN_DUP2, *place) for place in places]
        pid = os.posix_spawn(NODE, ["node", str(PROGRAM), "3"], {"PATH": os.defpath}, file_actions=moves)
        self._pids.append(pid)
        return os.pidfd_open(pid)

    def reap(self) -> None:
        for pid in self._pids:
            os.waitpid(pid, 0)


@dataclass
class Exchange:
    """A request to a web handler, and its response as it comes."""

    response: ResponseStream[WebResponseHead]
    call: asyncio.Future[CallResult]

    async def head(self) -> WebResponseHead:
        """An assertion that it comes."""
        head = await self.response.wait_head()
        assert head is not None, (await self.call).error
        return head

    async def whole(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; an assertion that it is complete."""
        head = await self.head()
        parts = []
        while part := await self.response.read():
            parts.append(part)
        result = await self.call
        assert result.failure is None, result.error
        return head.status, dict(head.headers), b"".join(parts)


@dataclass
class Loaded:
    """A worker that has loaded a function."""

    conversation: WorkerChannel
    runtime: str
    log: Path
    pidfd: int
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)  # the conversation, by itself

    async def call(
        self, params: object = None, *, output: bool = False, within_s: float = WITHIN_S
    ) -> CallResult:
        text = json.dumps(params).encode()
        return await self.conversation.call(text, wants_output=output, within_s=within_s)

    async def result(self, params: object = None) -> Any:
        """What the handler gives back; an assertion that it does."""
        answer = await self.call(params)
        assert answer.failure is None, answer.error
        return json.loads(answer.result)

    def request(
        self,
        method: str = "GET",
        path: str = "/",
        body: bytes = b"",
        *,
        query: str = "",
        headers: Headers = (),
        within_s: float = WITHIN_S,
    ) -> Exchange:
        """An HTTP request to a web handler, under way."""
        head = WebRequestHead(
            method, path, query, headers, client="192.0.2.1", root_path="/web/hello", caller="somebody"
        )
        response: ResponseStream[WebResponseHead] = ResponseStream()
        call = asyncio.ensure_future(
            self.conversation.call_web(encode_request(head, body), response, within_s=within_s)
        )
        call.add_done_callback(lambda _: response.end())
        return Exchange(response, call)

    async def process_has_ended(self) -> bool:
        return await asyncio.to_thread(lambda: bool(select.select([self.pidfd], [], [], WITHIN_S)[0]))

    def logged(self) -> str:
        return self.log.read_text()


async def _as_it_is(gone: WorkerExited) -> WorkerExited:
    return gone


class Programs:
    """Runs functions in workers of one kind."""

    def __init__(self, start: Start, folder: Path, suffix: str) -> None:
        self._start = start
        self._folder = folder
        self._suffix = suffix

    @contextlib.asynccontextmanager
    async def load(
        self,
        code: str | Mapping[str, str],
        *,
        handler: str = "hello.handler",
        at_once: int = 1,
        environment: Mapping[str, str] | None = None,
        max_result_bytes: int = 32 * 1024 * 1024,
        max_output_bytes: int = 64 * 1024,
        within_s: float = WITHIN_S,
        logs: bool = True,
        is_web: bool = False,
    ) -> AsyncIterator[Loaded]:
        """A worker with `code`, a file or several by name; it is ended in the end, whatever it does."""
        folder = self._folder / "code"
        for name, text in ({f"hello.{self._suffix}": code} if isinstance(code, str) else code).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        log = self._folder / "log" if logs else Path(os.devnull)
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as file:
            pidfd = self._start(theirs, file.fileno())
        ended = asyncio.Event()
        conversation = WorkerChannel(
            ours, SystemClock(), on_end=ended.set, explain=_as_it_is, printed=lambda began: ""
        )
        what = LoadRequest(
            handler=handler,
            folder=str(folder),
            environment={"PATH": os.defpath, **(environment or {})},
            context={"name": "hello", "version": 3},
            max_result_bytes=max_result_bytes,
            max_output_bytes=max_output_bytes,
            max_concurrency=at_once,
            is_web=is_web,
        )
        try:
            runtime = await conversation.load(what, within_s=within_s)
            yield Loaded(conversation, runtime, log, pidfd, ended)
        finally:
            conversation.close()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
