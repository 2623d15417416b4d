"""The agent's connection to the process that forwards its published ports: found, or started.

Used by `skerry.node.network.port_reservations` on a node of an ordinary user, whose bridge is in a network
namespace of its own. All methods but `ended` block for a moment, and may be called in any thread.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

import skerry
from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.ports import Protocol
from skerry.node.network.bridge_namespace import BridgeNamespace
from skerry.node.network.port_rules import HostPort

log = structlog.get_logger(__name__)

# In the node's own /run: paths of data folders may be too long for sockets.
FOLDER: Final = Path("/run/skerry-ports")
_SOCKET: Final = "control"
_ANSWER_S: Final = 5.0
_ANSWER_BYTES: Final = 1 << 20
_BACKLOG: Final = 4
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from skerry.node.network.forwarding.forwarder_process import main; main(*map(int, sys.argv[2:]))"
)


class _Answer(msgspec.Struct):
    pid: int
    ports: list[tuple[int, Protocol]]


class PortForwarder:
    """The forwarder of one bridge."""

    def __init__(self, namespace: BridgeNamespace, folder: Path = FOLDER) -> None:
        self._namespace = namespace
        self._folder = folder
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None  # None: an earlier agent started it

    def ports(self) -> set[HostPort]:
        """Those that it forwards. Raises Unavailable."""
        return self._request({})

    def add(self, sockets: Mapping[HostPort, Sequence[socket.socket]]) -> None:
        """Forward these ports; the bound `sockets` may be closed afterwards. Raises Unavailable."""
        for port, opened in sockets.items():
            self._request({"add": [(*port, len(opened))]}, [each.fileno() for each in opened])

    def remove(self, ports: Iterable[HostPort]) -> None:
        """Forward these no more; they are free on return. Raises Unavailable."""
        if removed := list(ports):
            self._request({"remove": removed})

    async def ended(self) -> None:
        """Wait until the process has ended."""
        with self._lock:
            connection = self._connect()
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        # An answer makes it readable, too, for the moment until it is read.
        with socket.socket(fileno=os.dup(connection.fileno())) as watched:
            while True:
                loop.add_reader(watched, ended.set)
                try:
                    await ended.wait()
                finally:
                    loop.remove_reader(watched)
                with self._lock:
                    if self._is_closed(watched):
                        self._disconnect()
                        return
                ended.clear()

    def close(self) -> None:
        """Leave it running while it has ports; else it ends, and has ended on return."""
        with self._lock:
            if self._connection is None:
                return
            try:
                answer = self._exchange(self._connection, {}, ())
                pidfd = os.pidfd_open(answer.pid) if not answer.ports else -1
            except (OSError, errors.Unavailable):
                pidfd = -1
            self._disconnect()
            if pidfd >= 0:
                select.select([pidfd], [], [], _ANSWER_S)
                os.close(pidfd)
            self._leave_process()

    def _request(self, request: dict[str, object], descriptors: Sequence[int] = ()) -> set[HostPort]:
        with self._lock:
            try:
                answer = self._exchange(self._connect(), request, descriptors)
            except OSError as error:
                self._disconnect()
                raise errors.Unavailable(
                    f"the process that forwards published ports failed: {error.strerror or error}; try again"
                ) from error
        return {(port, protocol) for port, protocol in answer.ports}

    def _exchange(
        self, connection: socket.socket, request: dict[str, object], descriptors: Sequence[int]
    ) -> _Answer:
        packet = json_codec.encode(request)
        if descriptors:
            socket.send_fds(connection, [packet], descriptors)
        else:
            connection.send(packet)
        return json_codec.decode(connection.recv(_ANSWER_BYTES), _Answer)

    def _connect(self) -> socket.socket:
        if self._connection is None:
            self._connection = self._open(str(self._folder / _SOCKET)) or self._start()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @staticmethod
    def _open(path: str) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        connection.settimeout(_ANSWER_S)
        try:
            connection.connect(path)
        except OSError:
            connection.close()
            return None
        return connection

    def _leave_process(self) -> None:
        """It has ended, or goes on without this process."""
        if self._process is not None:
            self._process.poll()
            self._process.returncode = self._process.returncode or 0  # nobody waits for it here
            self._process = None

    def _start(self) -> socket.socket:
        self._leave_process()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / _SOCKET
        path.unlink(missing_ok=True)
        assert self._namespace.descriptor is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as control:
            control.bind(str(path))
            control.listen(_BACKLOG)
            passed = (control.fileno(), self._namespace.descriptor)
            self._process = subprocess.Popen(
                (
                    *(sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM),
                    *(str(Path(skerry.__file__).parent.parent), *map(str, passed)),
                ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
                cwd="/",
                env={},
            )
        connection = self._open(str(path))
        if connection is None:
            raise OSError(None, "it ended at once")
        log.info("network.forwarder_started", pid=self._process.pid)
        return connection

    @staticmethod
    def _is_closed(connection: socket.socket) -> bool:
        try:
            return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
