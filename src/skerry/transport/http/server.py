"""The HTTP listeners, TCP and unix: uvicorn's parser and protocol in our event loop, under our own stop.

`uvicorn.Server` is not used: it takes the process's signals, polls ten times a second, and when its grace
period is over it leaves connections and tasks behind. This starts on a socket that is already bound and
stops within a bound, with nothing left. What is served is the ASGI app that `skerry.daemon.http` builds.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from pathlib import Path

import structlog
import uvicorn
from uvicorn.server import ServerState

from skerry.kit import listening_sockets, metrics, namespace_marker
from skerry.kit.networks import Network
from skerry.model.settings import HttpSettings
from skerry.transport import unix_sockets
from skerry.transport.access import peers
from skerry.transport.admission import AdmissionLimits, ConnectionSlot
from skerry.transport.http.asgi import ASGIApp
from skerry.transport.http.connection import FIRST_REQUEST_S, HttpConnection
from skerry.transport.http.dispatcher import HttpDispatcher
from skerry.transport.http.front_connection import AssignableConnection
from skerry.transport.http.front_pool import FrontPool
from skerry.transport.listeners import Listener, ListenerMetrics, ListenerOptions

log = structlog.get_logger(__name__)

_BACKLOG = 1024
_MEASURES = ListenerMetrics(
    metrics.gauge("skerry_http_connections", "HTTP connections held", ["listener"]),
    metrics.counter(
        "skerry_http_connections_refused_total", "HTTP connections rejected", ["listener", "reason"]
    ),
)
# A client whose machine is down sends nothing, and an idle stream would never notice.
# What is accepted has these from the listener.
_PROBES = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
# Of the time to stop, the part that is kept for aborting connections that did not end.
_FORCE_SHARE = 0.2


class HttpServer:
    """`await start(...)`, `listen_unix(...)` if there is to be a socket, or `start_unix(...)` for a socket
    alone; `failed()` beside the rest of the process, then `await stop(...)`."""

    def __init__(
        self,
        app: ASGIApp,
        settings: HttpSettings,
        *,
        trusted_uids: frozenset[int] | None = None,
        fronts: FrontPool | None = None,
    ) -> None:
        """`trusted_uids` are the local users that have reserved slots; root and our own if None. Connections
        without TLS may be assigned to `fronts`, which are not stopped with this."""
        self._settings = settings
        self._trusted_uids = (
            peers.trusted_uids(namespace_marker.own_uid()) if trusted_uids is None else trusted_uids
        )
        self._config = uvicorn.Config(
            app,
            interface="asgi3",
            http="httptools",
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # a proxy is not trusted about its clients
            timeout_keep_alive=settings.keep_alive_s,  # type: ignore[arg-type]  # handed to call_later as it is
        )
        self._config.load()
        self._direct = app if isinstance(app, HttpDispatcher) and app.direct_prefixes else None
        self._new_connection: Callable[..., HttpConnection] = HttpConnection
        if fronts is not None and self._direct is not None:
            self._new_connection = partial(AssignableConnection, pool=fronts)
        self._state = ServerState()
        self._listeners: list[Listener[HttpConnection]] = []
        self._paths: list[Path] = []
        self._ticker: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._retiring = asyncio.Event()
        self._empty = asyncio.Event()
        self._address = ("", 0)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return self._address

    async def start(
        self,
        sock: socket.socket,
        tls: ssl.SSLContext | None,
        *,
        listener: str = "http",
        networks: Sequence[Network] | None = None,
    ) -> None:
        """Serve on `sock`, which this owns from now on; with `networks`, only clients from those."""
        for level, option, value in _PROBES:
            sock.setsockopt(level, option, value)
        name = sock.getsockname()
        self._address = (name[0], name[1])
        sock.listen(_BACKLOG)
        self._listen(listener, sock, tls, networks)
        if tls is None:
            self._continue_connections(name[1])
        self._ticker = asyncio.get_running_loop().create_task(self._tick(), name="http.tick")
        log.info("http.listening", listener=listener, host=name[0], port=name[1], tls=tls is not None)

    def start_unix(
        self, path: Path, permissions: unix_sockets.SocketPermissions, *, listener: str, option: str
    ) -> None:
        """Serve on a new unix socket at `path` alone, in place of `start`. All its connections may be of one
        proxy, so a source has no limit of its own. `option` is the setting of the path."""
        self._listen(listener, unix_sockets.bind(path, permissions, option=option), None, has_sources=False)
        self._paths.append(path)
        self._ticker = asyncio.get_running_loop().create_task(self._tick(), name="http.tick")
        log.info("http.listening", listener=listener, socket=str(path))

    def listen_unix(self, path: Path, permissions: unix_sockets.SocketPermissions) -> None:
        """Serve the same on a new unix socket at `path`. No TLS: the kernel knows the user at the other
        end."""
        self._listen("http-unix", unix_sockets.bind(path, permissions, option="http.socket"), None)
        self._paths.append(path)
        log.info("http.listening", socket=str(path))

    def _listen(
        self,
        name: str,
        sock: socket.socket,
        tls: ssl.SSLContext | None,
        networks: Sequence[Network] | None = None,
        *,
        has_sources: bool = True,
    ) -> None:
        loop = asyncio.get_running_loop()
        app_state = {"stopping": self._stopping, "retiring": self._retiring}

        def connect(slot: ConnectionSlot | None = None) -> HttpConnection:
            return self._new_connection(
                self._config,
                self._state,
                app_state,
                settings=self._settings,
                loop=loop,
                slot=slot,
                when_lost=self._note_lost,
                direct=self._direct,
            )

        options = ListenerOptions(
            tls=tls,
            plaintext=tls is None,
            limits=AdmissionLimits(
                self._settings.max_connections,
                self._settings.max_connections_per_source if has_sources else self._settings.max_connections,
            ),
            handshake_timeout_s=self._settings.header_timeout_s,
            trusted_uids=self._trusted_uids,
            detects_tls=False,
            networks=networks,
            measures=_MEASURES,
        )
        if not self._listeners:
            self._unretire = listening_sockets.current().when_retired(self.retire)
        self._listeners.append(Listener(name, sock, options, connect, refusal=connect))

    def _continue_connections(self, port: int) -> None:
        """Go on with the connections of the process before. One that stays silent is closed soon: its client
        may wait for that, as the last answer of that process announced it."""
        clients = set()
        for sock in listening_sockets.current().adopt_connections(port):
            with suppress(OSError):  # it has left
                clients.add(sock.getpeername()[:2])
            self._listeners[-1].continue_connection(sock)
        if clients:
            log.info("http.continued", connections=len(clients))
            asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._close_unused, clients)

    def _close_unused(self, clients: set[tuple[str, int]]) -> None:
        for connection in list(self._state.connections):
            if isinstance(connection, HttpConnection) and connection.client in clients:
                connection.close_unused()

    async def failed(self) -> None:
        """Wait until the server has died by itself, and raise; returns once it was stopped."""
        assert self._ticker is not None, "the server is not started"
        await asyncio.wait({self._ticker})
        if not self._stopping.is_set():
            raise RuntimeError("the HTTP server ended by itself")

    def retire(self) -> list[asyncio.Future[None]]:
        """Have clients connect anew: go on serving, and close each connection behind its next answer, which
        says so. A client that finds a connection closed without that could not know whether its request was
        received. Returns the ends of the connections whose clients wait for an answer now."""
        self._retiring.set()
        connections = [each for each in self._state.connections if isinstance(each, HttpConnection)]
        for connection in connections:
            connection.retire()
        return [connection.closed for connection in connections if connection.is_unanswered]

    async def stop(self, within_s: float) -> None:
        """Take no more, end streams, let requests finish; by the end of the time nothing is left."""
        if not self._listeners or self._ticker is None:
            return
        listeners, self._listeners = self._listeners, []
        self._unretire()
        if listening_sockets.current().is_shared:
            self.retire()  # also what a process has accepted that was to take over, and fails
        self._stopping.set()
        for listener in listeners:
            listener.close()
        for path in self._paths:
            unix_sockets.remove_stale(path)
        for connection in list(self._state.connections):
            connection.shutdown()
        self._ticker.cancel()
        await asyncio.gather(self._ticker, return_exceptions=True)
        if not await self._emptied(within_s * (1 - _FORCE_SHARE)):
            log.warning("http.forced", connections=len(self._state.connections), tasks=len(self._state.tasks))
            for task in list(self._state.tasks):
                task.cancel()
            for connection in list(self._state.connections):
                if isinstance(connection, HttpConnection):
                    connection.cancel_direct()
            # Cancelled requests send that to their clients if they can; only then their connections are
            # closed.
            await asyncio.wait([*self._state.tasks, asyncio.ensure_future(asyncio.sleep(0))], timeout=0.1)
            for connection in list(self._state.connections):
                if isinstance(connection, HttpConnection):
                    connection.drop()
            await self._emptied(within_s * _FORCE_SHARE)
        try:
            async with asyncio.timeout(within_s * _FORCE_SHARE):
                for listener in listeners:
                    await listener.drained()
        except TimeoutError:  # connections that were accepted last
            for connection in list(self._state.connections):
                if isinstance(connection, HttpConnection):
                    connection.drop()
            for listener in listeners:
                await listener.drained()
        log.info("http.stopped")

    async def _emptied(self, within_s: float) -> bool:
        """True as soon as no connection and no task is left, False if that takes too long."""
        try:
            async with asyncio.timeout(within_s):
                while self._state.connections:
                    self._empty.clear()
                    await self._empty.wait()
                if self._state.tasks:
                    await asyncio.wait(list(self._state.tasks))
        except TimeoutError:
            return False
        return True

    def _note_lost(self) -> None:
        if not self._state.connections:
            self._empty.set()

    async def _tick(self) -> None:
        """Keep the Date header current while the server runs."""
        while any(listener.is_accepting for listener in self._listeners):
            self._state.default_headers = _date()
            await asyncio.sleep(1.0)


def _date() -> list[tuple[bytes, bytes]]:
    return [(b"date", formatdate(usegmt=True).encode())]
