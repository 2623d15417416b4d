"""The handover of a data folder from a running process to the next (`--takeover`): upgrades without a gap.

The running process listens on `handover.sock` in its data folder. The next one, which has imported all of
Skerry, connects and asks. The running one has its clients connect anew for a moment, stops its role as ever,
except that its listening sockets stay open, and sends them with the lock of the folder. The next one starts
its role on them: connections that came meanwhile have waited in the kernel's queue. Until it reports that it
is ready the former one stays; if the next one ends before that, the former one starts its role again on the
same sockets, unless the data is by then of a version later than its own.

    next                        former
    request ──────────────────▶
            ◀────────────────── accepted, or refused with the reason
            ◀────────────────── sockets and the lock, once its role has stopped
    ready   ──────────────────▶ exits

Both run as the same user, which the kernel tells. `skerry.daemon.process` calls both sides.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from skerry import __version__
from skerry.kit import json_codec, unix_addresses
from skerry.model import errors

log = structlog.get_logger(__name__)

FILE_NAME: Final = "handover.sock"
_MAX_MESSAGE: Final = 64 * 1024
_MAX_SOCKETS: Final = 200  # the kernel passes at most 253 descriptors in one message
_ANSWER_S: Final = 5.0  # for a message that takes no work
_MARGIN_S: Final = 10.0  # beyond the time that the former process has for its stop
_UCRED: Final = struct.Struct("iII")


class HandoverRequest(msgspec.Struct, frozen=True):
    """What the next process sends first."""

    pid: int
    role: str
    version: str


class HandoverReply(msgspec.Struct, frozen=True):
    """What the former process answers: the reason of a refusal, or how long its stop may take."""

    refused: str = ""
    version: str = ""
    within_s: float = 0.0


class HandoverSockets(msgspec.Struct, frozen=True):
    """The names of the sockets that come with this message, in order; behind them comes the lock."""

    names: tuple[str, ...]


class HandoverReady(msgspec.Struct, frozen=True):
    """The next process serves."""

    pid: int


class Handover:
    """One handover, as the former process sees it."""

    def __init__(self, connection: socket.socket, request: HandoverRequest) -> None:
        self._connection = connection
        self.request = request

    def send(self, sockets: Mapping[str, socket.socket], lock: int) -> None:
        """Pass on the sockets and the lock; both stay open here, too."""
        names = tuple(sockets)[:_MAX_SOCKETS]
        descriptors = [*(sockets[name].fileno() for name in names), lock]
        with contextlib.suppress(OSError):  # the next process has ended: `succeeded` finds that out
            socket.send_fds(self._connection, [json_codec.encode(HandoverSockets(names))], descriptors)

    async def succeeded(self) -> bool:
        """Wait until the next process is ready; False if it ended before."""
        try:
            data = await asyncio.get_running_loop().sock_recv(self._connection, _MAX_MESSAGE)
        except OSError:
            return False
        return bool(data)

    def close(self) -> None:
        self._connection.close()


class HandoverListener:
    """Takes requests for a handover; `requested()` returns the first that is accepted."""

    def __init__(self, folder: Path, role: str, *, within_s: float) -> None:
        self._path = folder / FILE_NAME
        self._role = role
        self._within_s = within_s
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)

    def __enter__(self) -> HandoverListener:
        # The folder is locked: a socket that is there is of a process that has ended.
        self._path.unlink(missing_ok=True)
        with unix_addresses.address_of(self._path) as address:
            self._sock.bind(address)
        self._path.chmod(0o600)
        self._sock.listen(4)
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()
        self._path.unlink(missing_ok=True)

    async def requested(self) -> Handover:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._sock)
            try:
                async with asyncio.timeout(_ANSWER_S):
                    if (handover := await self._answer(connection)) is not None:
                        return handover
            except (OSError, TimeoutError, msgspec.DecodeError) as error:
                log.warning("handover.failed", error=str(error) or type(error).__name__)
            except BaseException:
                connection.close()
                raise
            connection.close()

    async def _answer(self, connection: socket.socket) -> Handover | None:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        data = await loop.sock_recv(connection, _MAX_MESSAGE)
        if not data:
            return None
        request = msgspec.json.decode(data, type=HandoverRequest)
        problem = self._problem(connection, request)
        if problem:
            log.warning("handover.refused", by=request.pid, reason=problem)
        reply = HandoverReply(problem, __version__, self._within_s)
        await loop.sock_sendall(connection, json_codec.encode(reply))
        return None if problem else Handover(connection, request)

    def _problem(self, connection: socket.socket, request: HandoverRequest) -> str:
        uid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
        if uid != os.geteuid():
            return f"it runs as user {os.geteuid()}, not {uid}; take over as the same user"
        if request.role != self._role:
            return f"it is a 'skerry {self._role}', not a 'skerry {request.role}'; stop it first"
        return ""


class Takeover:
    """A handover, as the next process sees it: blocking, before its event loop runs."""

    def __init__(
        self, connection: socket.socket, version: str, sockets: dict[str, socket.socket], lock: int
    ) -> None:
        self._connection = connection
        self.version = version  # of the former process
        self.sockets = sockets
        self.lock = lock  # a descriptor, which belongs to the caller

    def report_ready(self) -> None:
        """From now on the former process is not needed."""
        with contextlib.suppress(OSError):  # it was killed meanwhile
            self._connection.send(json_codec.encode(HandoverReady(os.getpid())))

    def close(self) -> None:
        """Without `report_ready` before, the former process goes on."""
        self._connection.close()
        for sock in self.sockets.values():
            sock.close()


def request(folder: Path, role: str) -> Takeover | None:
    """Ask the process that holds `folder` to hand over, and wait for it; None if it ends without doing so.
    Raises `FailedPrecondition` if it refuses or cannot."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        connection.settimeout(_ANSWER_S)
        try:
            with unix_addresses.address_of(folder / FILE_NAME) as address:
                connection.connect(address)
        except OSError as error:
            raise errors.FailedPrecondition(
                f"the process that has the data folder {folder} cannot hand over ({error.strerror}): it is"
                " still starting, or a service, which systemctl restarts while clients wait. Else stop it"
                " and start this one without --takeover: containers and routes keep running meanwhile"
            ) from None
        with _timeouts_explained(folder):
            connection.send(json_codec.encode(HandoverRequest(os.getpid(), role, __version__)))
            data = connection.recv(_MAX_MESSAGE)
            if not data:
                return None
            reply = msgspec.json.decode(data, type=HandoverReply)
            if reply.refused:
                raise errors.FailedPrecondition(
                    f"the process that has the data folder {folder} does not hand over: {reply.refused}"
                )
            connection.settimeout(reply.within_s + _MARGIN_S)
            data, descriptors, _, _ = socket.recv_fds(connection, _MAX_MESSAGE, _MAX_SOCKETS + 1)
        if not data or not descriptors:
            return None
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        names = msgspec.json.decode(data, type=HandoverSockets).names
        *bound, lock = descriptors
        sockets = {name: socket.socket(fileno=fd) for name, fd in zip(names, bound, strict=True)}
        for sock in sockets.values():
            sock.setblocking(False)
        undo.pop_all()
        return Takeover(connection, reply.version, sockets, lock)


@contextlib.contextmanager
def _timeouts_explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise errors.Unavailable(
            f"the process that has the data folder {folder} did not hand over in time; see its log"
        ) from None
    except OSError as error:
        raise errors.Unavailable(f"the handover of {folder} failed: {error.strerror}; try again") from None
