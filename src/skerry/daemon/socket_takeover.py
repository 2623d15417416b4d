"""A takeover from a Skerry 0.1, which cannot hand over: its listeners are replaced, then it is stopped.

    1. a second listener at each of its addresses gets every new connection, which waits in its queue
    2. the former process accepts what is in its own queues, and goes on serving its connections
    3. its plain HTTP connections are duplicated, and it gets SIGTERM: it answers what runs, and ends
    4. this process has the folder, and starts its role on those listeners and connections

Until 3 nothing is lost by giving up. After it there is no way back: the former process has ended. Versions
from 0.2 on hand over by themselves, see `skerry.daemon.handover`. `skerry.daemon.process` calls this.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import structlog

from skerry.kit import process_sockets
from skerry.kit.process_sockets import ForeignProcess
from skerry.model import errors

log = structlog.get_logger(__name__)

_VERSIONS: Final = "0.1."
_SETTLE_S: Final = 0.5  # for connections whose handshake began at the former listeners
_ACCEPT_S: Final = 0.1  # for clients of the unix sockets that were about to be accepted
_QUEUE_S: Final = 5.0  # for the former process to accept what it has in its queues
_MARGIN_S: Final = 12.0  # beyond the time that a stop may take
# Of its unix sockets: the field of the ready file, and the option by which the listener is found.
_UNIX_SOCKETS: Final = {
    "socket": "--socket",
    "http_socket": "http.socket",
    "web_socket": "functions.web_socket",
}


class ReadyFile(msgspec.Struct, frozen=True):
    """What this reads of the ready file of a former process."""

    pid: int
    role: str
    version: str
    http: str = ""
    socket: str = ""
    http_socket: str = ""
    web_socket: str = ""


class SocketTakeover:
    """What a former process leaves: listeners by name, and its HTTP connections."""

    def __init__(self, ready: ReadyFile) -> None:
        self._ready = ready
        self._is_served = False
        self.version = ready.version
        self.sockets: dict[str, socket.socket] = {}
        self.connections: list[socket.socket] = []

    def former_has_ended(self) -> None:
        """The sockets are this process's alone. A connection whose request it cut off is closed, as it would
        have been by the former process."""
        for sock in self.sockets.values():
            if sock.family != socket.AF_UNIX and sock.type == socket.SOCK_STREAM:
                process_sockets.end_sharing(sock)
        for sock in [one for one in self.connections if process_sockets.awaits_answer(one)]:
            self.connections.remove(sock)
            sock.close()
        log.info(
            "process.former_ended",
            former=self._ready.pid,
            version=self.version,
            sockets=len(self.sockets),
            connections=len(self.connections),
        )

    def report_ready(self) -> None:
        self._is_served = True

    def close(self) -> None:
        if not self._is_served:
            log.error(
                "process.takeover_failed",
                former=self._ready.pid,
                version=self.version,
                effect="the former process has ended and nothing serves; containers and routes keep running",
                fix="correct the error, and start this version again",
            )
        self.drop()

    def drop(self) -> None:
        _close_all([*self.sockets.values(), *self.connections])


def former_process(folder: Path, pid: int) -> ReadyFile | None:
    """The process that has the data folder, if it is ready and a Skerry 0.1."""
    try:
        ready = msgspec.json.decode((folder / "ready.json").read_bytes(), type=ReadyFile)
    except (OSError, msgspec.DecodeError):
        return None
    return ready if ready.pid == pid and ready.version.startswith(_VERSIONS) else None


def take_over(folder: Path, ready: ReadyFile, role: str, *, within_s: float) -> SocketTakeover:
    """Replace the listeners of that process, and stop it, which may take `within_s`. Raises
    `FailedPrecondition` if that is impossible; it then goes on."""
    if role != ready.role:
        raise errors.FailedPrecondition(
            f"the process that has the data folder {folder} is a 'skerry {ready.role}', not a"
            f" 'skerry {role}'; stop it first"
        )
    taken = SocketTakeover(ready)
    replaced: list[socket.socket] = []
    with contextlib.ExitStack() as undo:
        undo.callback(taken.drop)
        with _refusals_explained(folder, ready):
            former = ForeignProcess(ready.pid)
            undo.callback(former.close)
            _check(former, folder)
            undo.callback(_close_all, replaced)
            _replace_listeners(former, taken, replaced)
            _wait_for_empty_queues(replaced)
            taken.connections += _connections(former, ready)
            _replace_unix_sockets(ready, taken)  # last: the former process cannot get its paths back
            former.terminate()
        if not former.has_ended(within_s + _MARGIN_S):
            raise errors.Unavailable(
                f"process {ready.pid}, which has the data folder {folder}, was told to stop and has not"
                " ended; see its log, and start this one once it has"
            )
        undo.pop_all()
    _close_all(replaced)
    former.close()
    taken.former_has_ended()
    return taken


@contextlib.contextmanager
def _refusals_explained(folder: Path, ready: ReadyFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.FailedPrecondition(
            f"the Skerry {ready.version} that has the data folder {folder}, process {ready.pid}, cannot be"
            f" taken over: {error.strerror or error}. That takes the same user, the same network namespace,"
            " and the permission to trace it, which root has. Else stop it and start this one without"
            " --takeover: containers and routes keep running meanwhile"
        ) from None


def _check(former: ForeignProcess, folder: Path) -> None:
    if former.uid != os.geteuid():
        raise OSError(f"it runs as user {former.uid}, not {os.geteuid()}")
    if not former.has_lock(folder / "lock"):
        raise OSError("it does not hold the lock of the folder")
    if not former.shares_network():
        raise OSError("it is in another network namespace")


def _replace_listeners(former: ForeignProcess, taken: SocketTakeover, replaced: list[socket.socket]) -> None:
    """Put a TCP listener in the place of each one of the former process; those go to `replaced`. The name
    server of containers has datagrams at an address of a listener, and goes on with the same socket."""
    datagrams: dict[str, socket.socket] = {}
    with contextlib.ExitStack() as undo:
        for sock in former.sockets():
            is_internet = sock.family in (socket.AF_INET, socket.AF_INET6)
            if is_internet and sock.type == socket.SOCK_STREAM and process_sockets.is_listening(sock):
                replaced.append(sock)
            elif is_internet and sock.type == socket.SOCK_DGRAM:
                datagrams[_address(sock)] = undo.enter_context(sock)
            else:
                sock.close()
        for sock in replaced:
            taken.sockets[f"tcp {_address(sock)}"] = process_sockets.replace_tcp(sock)
            if (beside := datagrams.get(_address(sock))) is not None:
                taken.sockets[f"udp {_address(sock)}"] = beside.dup()


def _replace_unix_sockets(ready: ReadyFile, taken: SocketTakeover) -> None:
    for field, option in _UNIX_SOCKETS.items():
        if path := getattr(ready, field):
            with contextlib.suppress(FileNotFoundError):  # somebody removed it; the new process makes another
                taken.sockets[f"{option} {path}"] = process_sockets.replace_unix(Path(path))
    time.sleep(_ACCEPT_S)


def _wait_for_empty_queues(replaced: list[socket.socket]) -> None:
    """Until the former process has accepted every connection that was made before its listeners were
    replaced: what is in its queues when it stops is reset."""
    time.sleep(_SETTLE_S)
    deadline = time.monotonic() + _QUEUE_S
    while any(map(process_sockets.queue_length, replaced)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _connections(former: ForeignProcess, ready: ReadyFile) -> list[socket.socket]:
    """Its connections at the HTTP listener. With TLS, only it can go on with them."""
    url = urlsplit(ready.http)
    found = []
    for sock in former.sockets() if url.scheme == "http" else ():
        is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
        if is_tcp and not process_sockets.is_listening(sock) and sock.getsockname()[1] == url.port:
            sock.setblocking(False)
            found.append(sock)
        else:
            sock.close()
    return found


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"{host}:{port}"


def _close_all(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
