"""One HTTP GET or TCP connect for a check, as callbacks: most checks of a node are of this kind.

A probe has no task and, if the server answers soon, registers nothing with the event loop: between processes
of one machine a connection is made and a request taken at once, and `ReadBatch` reads the answers of probes
that began together in one turn of the loop. Waking the loop for each answer would cost as much as the rest of
the check. `http_probe` parses the answer; `skerry.node.health.probes` chooses the kind of probe.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Final

import structlog

from skerry.model import errors
from skerry.node.health.connections import CHUNK, ProbeTarget
from skerry.node.health.decisions import CheckResult
from skerry.node.health.http_probe import HttpResponseReader, ProbeFailed, result_of
from skerry.node.health.monitor import CheckDone

_READ_DELAY_S: Final = 0.005
_PERHAPS_CONNECTED: Final = (0, errno.EINPROGRESS, errno.EISCONN)

log = structlog.get_logger(__name__)


class ReadBatch:
    """When probes read their answers: those that began together, together."""

    def __init__(self) -> None:
        self._probes: list[SocketProbe] = []

    def add(self, probe: SocketProbe) -> None:
        if not self._probes:
            asyncio.get_running_loop().call_later(_READ_DELAY_S, self._read)
        self._probes.append(probe)

    def _read(self) -> None:
        probes, self._probes = self._probes, []
        for probe in probes:
            probe.read()


class SocketProbe:
    """A check by HTTP, or with no `reader` by TCP. Calls `done` once, unless it is cancelled before."""

    __slots__ = (
        "_batch",
        "_deadline",
        "_done",
        "_hosts",
        "_loop",
        "_opening",
        "_port",
        "_reader",
        "_remove",
        "_socket",
        "_timeout_s",
        "_timer",
        "_unsent",
    )

    def __init__(
        self,
        opening: asyncio.Future[socket.socket],
        target: ProbeTarget,
        reader: HttpResponseReader | None,
        timeout_s: float,
        batch: ReadBatch,
        done: CheckDone,
    ) -> None:
        """`opening` comes to a socket that is not connected and does not block."""
        self._opening = opening
        self._hosts = list(target.hosts)
        self._port = target.port
        self._reader = reader
        self._batch = batch
        self._done: CheckDone | None = done
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._remove: Callable[[socket.socket], object] | None = None  # from the loop, while it is there
        self._unsent = b""
        self._timeout_s = timeout_s
        self._deadline = self._loop.time() + timeout_s
        self._timer: asyncio.TimerHandle | None = None  # while it waits for somebody; most never do
        if opening.done():
            # Not now: `done` is called after whoever began this knows of it, and connecting alternately with
            # other work takes longer than connecting all that are due.
            self._loop.call_soon(self._opened, opening)
        else:
            self._set_timer()
            opening.add_done_callback(self._opened)

    def cancel(self) -> None:
        """Close everything; `done` is not called any more."""
        self._done = None
        self._close()

    def read(self) -> None:
        """Read what has come; wait for more if that is not all."""
        assert self._reader is not None
        try:
            while self._socket is not None:
                data = self._socket.recv(CHUNK)
                if not data or self._reader.feed(data):
                    self._finish(result_of(self._reader.answer()))
        except BlockingIOError:
            self._register(self._loop.add_reader, self._loop.remove_reader, self.read)
        except (OSError, ProbeFailed) as error:
            self._fail(error)

    def _opened(self, opening: asyncio.Future[socket.socket]) -> None:
        if opening.cancelled():
            return
        if (error := opening.exception()) is not None:
            self._fail(error)
            return
        self._socket = opening.result()
        if self._done is None:
            self._close()
        else:
            self._connect()

    def _connect(self) -> None:
        """Try the next address, or, without a request, find out what became of the last attempt."""
        assert self._socket is not None
        self._unregister()
        host = self._hosts[0]
        number = self._socket.connect_ex((host, self._port))
        # On one machine the handshake is over by now; what became of it is said to who sends, too.
        if self._reader is not None and number in _PERHAPS_CONNECTED:
            self._unsent = self._reader.request(host, self._port)
            self._send()
            return
        if number == errno.EINPROGRESS:
            number = self._socket.connect_ex((host, self._port))
        if number == errno.ECONNREFUSED and len(self._hosts) > 1:
            self._try_next()
        elif number in (errno.EINPROGRESS, errno.EALREADY):
            self._register(self._loop.add_writer, self._loop.remove_writer, self._connect)
        elif number not in (0, errno.EISCONN):
            self._fail(OSError(number, os.strerror(number)))
        else:
            self._finish(CheckResult(True))

    def _try_next(self) -> None:
        del self._hosts[0]
        self._connect()

    def _send(self) -> None:
        assert self._socket is not None
        self._unregister()
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:  # it is not connected yet, or takes no more
            self._register(self._loop.add_writer, self._loop.remove_writer, self._send)
        except OSError as error:
            if error.errno == errno.ECONNREFUSED and len(self._hosts) > 1:
                # The refusal was told here, and not to `connect`, which ends the attempt now.
                self._socket.connect_ex((self._hosts[0], self._port))
                self._try_next()
            else:
                self._fail(error)
        else:
            self._batch.add(self)

    def _register(
        self,
        add: Callable[..., object],
        remove: Callable[[socket.socket], object],
        act: Callable[[], None],
    ) -> None:
        if self._remove is None:
            assert self._socket is not None
            self._remove = remove
            self._set_timer()
            add(self._socket, act)

    def _unregister(self) -> None:
        if self._remove is not None:
            assert self._socket is not None
            self._remove(self._socket)
            self._remove = None

    def _set_timer(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._expire)

    def _expire(self) -> None:
        self._finish(no_answer(self._timeout_s))

    def _fail(self, error: BaseException) -> None:
        self._finish(result_of_error(error))

    def _finish(self, result: CheckResult | None) -> None:
        self._close()
        done, self._done = self._done, None
        if done is not None:
            done(result)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._unregister()
            self._socket.close()
            self._socket = None


def no_answer(timeout_s: float) -> CheckResult:
    return CheckResult(False, f"no answer within {timeout_s:g} s")


def result_of_error(error: BaseException) -> CheckResult | None:
    """What a check has found that ended with `error`; None: the check is at fault."""
    match error:
        case ProbeFailed():
            return CheckResult(False, str(error))
        case OSError():
            return CheckResult(False, (error.strerror or str(error)).lower())
        case errors.SkerryError():  # the container has just ended, or its node cannot run commands now
            return CheckResult(False, error.message)
    log.error("check.broken", exc_info=error)
    return None
