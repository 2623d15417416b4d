"""How a verb reaches the server: call it, and say what went wrong in plain words.

Only the standard library: a verb must start quickly and must not load server code. Which server is meant
is told by `skerry.cli.discovery`. Its unix socket comes first; who cannot open that goes on over TCP.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import click

from skerry.cli import discovery
from skerry.cli.discovery import ServerTarget
from skerry.cli.discovery import ServerUnreachable as ServerUnreachable
from skerry.cli.options import option_object
from skerry.kit import unix_addresses

_MAX_REPLY = 64 * 1024 * 1024
_PIECE = 64 * 1024
_HOST = "localhost"  # over a unix socket
_TIMEOUT_S = 60.0
_MOMENT_S = 1.0  # in which nobody wonders what is going on
_MAX_LINE = 200  # longer texts are pages of somebody in between


class ApiError(click.ClickException):
    """The server answered with an error; its own sentence is the message."""

    exit_code = 1

    def __init__(self, status: int, message: str, code: str, reply: Any = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.reply = reply  # what else it said, as it said it


class IncompleteReply(ServerUnreachable):
    """The server went away within its answer."""


class UnexpectedReply(click.ClickException):
    """Something answered that is no Skerry, or one of another version."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Is Skerry there, and of the same version as this command? 'skerry version' shows it."
        )


class JsonReply(dict[str, Any]):
    """A JSON object of the server; a field that it lacks is told."""

    def __missing__(self, key: str) -> Any:
        raise UnexpectedReply(f"The answer of the server has no '{key}'")


class ErrorCollector:
    """Of several things that are each tried: what goes wrong is told, and the exit code is 1 then."""

    def __enter__(self) -> ErrorCollector:
        self._is_any = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._is_any:
            raise SystemExit(1)

    @contextmanager
    def told(self) -> Iterator[None]:
        """For one of them."""
        try:
            yield
        except ServerUnreachable:
            raise  # which nothing else would reach either
        except click.ClickException as error:
            error.show()
            self._is_any = True


class WebSocketTarget(NamedTuple):
    """Where to, with which headers, and over which TLS or which connected socket."""

    url: str
    headers: dict[str, str]
    tls: ssl.SSLContext | None
    socket: socket.socket | None


@contextmanager
def _told_if_slow(url: str) -> Iterator[None]:
    """Whoever waits for a connection for longer than a moment is told where to."""
    timer = threading.Timer(
        _MOMENT_S, click.echo, (f"Nothing has answered at {url} so far; waiting.",), {"err": True}
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class ApiClient:
    """One server, called over HTTP."""

    def __init__(self, target: ServerTarget) -> None:
        self.target = target
        self._request_id = os.urandom(
            8
        ).hex()  # of all calls of one verb, which is one request to who types it
        self._split = target.split
        self._socket_error: OSError | None = None

    def get(self, *path: str, **query: str | None) -> Any:
        return self._call("GET", path, query)

    def get_list(self, *path: str) -> list[Any]:
        """Of the routes that answer with a JSON array."""
        found: list[Any] = self._call("GET", path, {}, kind=list)
        return found

    def post(self, *path: str, body: Any = None, timeout: float | None = _TIMEOUT_S) -> Any:
        """`body` is sent as JSON, or as it is if it is bytes."""
        return self._call("POST", path, {}, body, timeout)

    def put(self, *path: str, body: Any = None, **query: str | None) -> Any:
        return self._call("PUT", path, query, body)

    def patch(self, *path: str, body: Any, **query: str | None) -> Any:
        return self._call("PATCH", path, query, body)

    def delete(self, *path: str, **query: str | None) -> Any:
        return self._call("DELETE", path, query)

    def stream(self, *path: str, headers: dict[str, str] | None = None, **query: str | None) -> Iterator[str]:
        """The lines of an endless answer, as they come; told if it breaks off."""
        with self._open("GET", path, query, headers) as response, _whole():
            for line in response:
                yield line.decode("utf-8", "replace").rstrip("\r\n")

    def steps(self, *path: str, body: Any) -> Iterator[Any]:
        """What a POST is answered step by step, each a line of JSON; told if it breaks off."""
        with self._open("POST", path, {}, body=body) as response, _whole():
            for line in response:
                yield parse_object(line)

    def output(self, *path: str, **query: str | None) -> Iterator[bytes]:
        """An answer that may be endless, byte for byte as it comes; told if it breaks off."""
        with self._open("GET", path, query, {"Accept": "*/*"}) as response, _whole():
            while data := response.read1(_PIECE):
                yield data

    def websocket(self, *path: str, **query: Any) -> WebSocketTarget:
        """What a WebSocket client needs to call `path`; lists in `query` are repeated."""
        where, headers = self._target(path, query), self._headers({})
        connected = self._connect_socket(_TIMEOUT_S)
        if connected is not None or self._split is None:
            return WebSocketTarget(f"ws://{_HOST}{where}", headers, None, connected)
        if self._split.scheme == "http":
            return WebSocketTarget(f"ws://{self._split.netloc}{where}", headers, None, None)
        return WebSocketTarget(f"wss://{self._split.netloc}{where}", headers, self._tls(), None)

    def ask(self, *path: str) -> tuple[int, Any]:
        """Status and JSON of a GET, also when the status is an error: for health."""
        with self._exchange("GET", path, {}, None) as response:
            return response.status, _json(_read(response))

    @contextmanager
    def _open(
        self,
        verb: str,
        path: tuple[str, ...],
        query: dict[str, str | None],
        headers: dict[str, str] | None = None,
        body: Any = None,
    ) -> Iterator[http.client.HTTPResponse]:
        with self._exchange(verb, path, query, body, timeout=None, headers=headers) as response:
            _raise_for(response)
            yield response

    def _call(
        self,
        verb: str,
        path: tuple[str, ...],
        query: dict[str, str | None],
        body: Any = None,
        timeout: float | None = _TIMEOUT_S,
        kind: type = dict,
    ) -> Any:
        """The answer, which is of this kind; None if there is none to give."""
        with self._exchange(verb, path, query, body, timeout) as response:
            _raise_for(response)
            data = _read(response)
            return None if response.status == HTTPStatus.NO_CONTENT else _expect(kind, data)

    @contextmanager
    def _exchange(
        self,
        verb: str,
        path: tuple[str, ...],
        query: dict[str, str | None],
        body: Any,
        timeout: float | None = _TIMEOUT_S,
        headers: dict[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """A request, and its answer within this block."""
        target = self._target(path, query)
        sent = self._headers({"Accept": "application/json", **(headers or {})})
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        with closing(self._connection(timeout)) as connection:
            try:
                if connection.sock is None:
                    with _told_if_slow(self.target.url):
                        connection.connect()
                connection.request(verb, target, body=data, headers=sent)
                response = connection.getresponse()
            except ssl.SSLCertVerificationError as error:
                raise self.not_trusted(error) from None
            except (OSError, http.client.HTTPException, UnicodeError) as error:  # the last: no name of a host
                raise self.not_reached(error) from None
            with response:
                yield response

    def _connection(self, timeout: float | None) -> http.client.HTTPConnection:
        connected = self._connect_socket(timeout)
        if connected is not None or self._split is None:
            connection = http.client.HTTPConnection(_HOST, timeout=timeout)
            connection.sock = connected
            return connection
        assert self._split.hostname is not None
        if self._split.scheme == "http":
            return http.client.HTTPConnection(self._split.hostname, self._split.port or 80, timeout=timeout)
        return http.client.HTTPSConnection(
            self._split.hostname, self._split.port or 443, timeout=timeout, context=self._tls()
        )

    def _connect_socket(self, timeout: float | None) -> socket.socket | None:
        """Connected to the server's unix socket; None if there is none, or none for us, and TCP has to do."""
        self._socket_error = None
        if self.target.socket is None:
            return None
        try:
            return unix_addresses.connect(self.target.socket, timeout)
        except OSError as error:
            if self._split is None:
                raise self.not_reached(error) from None
            self._socket_error = error
            return None

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.target.ca)
        except OSError as error:
            raise click.UsageError(f"The CA file {self.target.ca} cannot be read: {error}") from None

    def _target(self, path: tuple[str, ...], query: dict[str, Any]) -> str:
        where = "/" + "/".join(quote(part, safe="") for part in path)
        given = {name: value for name, value in query.items() if value is not None}
        asked = f"?{urlencode(given, doseq=True)}" if given else ""
        below = "" if self._split is None else self._split.path.rstrip("/")
        return f"{below}{where}{asked}"

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        headers = {**more, "X-Request-Id": self._request_id}
        if self.target.token:
            headers["Authorization"] = f"Bearer {self.target.token}"
        return headers

    def not_reached(self, error: Exception) -> ServerUnreachable:
        """What to say if nobody answers."""
        nor = ""
        if self._socket_error is not None:
            nor = f" Nor does its socket {self.target.socket} serve us: {self._socket_error.strerror}."
        return ServerUnreachable(
            f"Nothing answers at {self.target.url} (found by {self.target.found_by}): "
            f"{error or type(error).__name__}.{nor} Is Skerry running there?"
        )

    def not_trusted(self, error: ssl.SSLCertVerificationError) -> ServerUnreachable:
        """What to say of a server whose certificate is none."""
        return ServerUnreachable(
            f"{self.target.url} shows a certificate that cannot be verified ({error.verify_message}). "
            "Give the server's CA with --ca or SKERRY_CA: it is the file pki/ca.crt in its data folder."
        )


def _server(url: str | None, data: str | None, token: str | None, ca: str | None) -> ApiClient:
    return ApiClient(discovery.find(url, data, token, ca))


def _server_or_node(url: str | None, data: str | None, token: str | None, ca: str | None) -> ApiClient:
    return ApiClient(discovery.find(url, data, token, ca, at_node=True))


def _server_without_ca(url: str | None, data: str | None, token: str | None) -> ApiClient:
    return ApiClient(discovery.find(url, data, token, None))


_URL = click.option(
    "--url", metavar="URL", help="The server: http://127.0.0.1:1323, unix:/PATH. [env: SKERRY_URL]"
)
_DATA = click.option(
    "--data", metavar="DIR", help="Data folder of a Skerry on this machine. [env: SKERRY_DATA]"
)
_TOKEN = click.option(
    "--token", metavar="TEXT", help="Access token; your own Skerry needs none. [env: SKERRY_TOKEN]"
)
_CA = click.option("--ca", metavar="FILE", help="CA certificate of an https server. [env: SKERRY_CA]")

# Of every verb that talks to a server; they arrive together as `server`.
options = option_object("server", _server, _URL, _DATA, _TOKEN, _CA)
# Of one that a node with an HTTP address answers as well: those for functions.
options_or_node = option_object("server", _server_or_node, _URL, _DATA, _TOKEN, _CA)
# Of one with a `--ca` of its own; that of the server can still be in the environment.
options_without_ca = option_object("server", _server_without_ca, _URL, _DATA, _TOKEN)


@contextmanager
def _whole() -> Iterator[None]:
    """What is read in here is read to its end, or told to be cut off."""
    try:
        yield
    except (OSError, http.client.HTTPException):
        raise IncompleteReply(
            "The answer of the server broke off, so this is not all. Is it still running? Try again."
        ) from None


def _raise_for(response: http.client.HTTPResponse) -> None:
    if response.status >= 400:
        raise error_from_reply(response.status, response.reason, _read(response))


def _read(response: http.client.HTTPResponse) -> bytes:
    with _whole():
        return response.read(_MAX_REPLY)


def parse_object(data: bytes | str) -> JsonReply:
    """A JSON object that the server sent."""
    reply: JsonReply = _expect(dict, data)
    return reply


def _expect(kind: type, data: bytes | str) -> Any:
    reply = _json(data)
    if not isinstance(reply, kind):
        raise UnexpectedReply("Something answers, but not as Skerry does")
    return reply


def error_from_reply(status: int, reason: str, body: bytes) -> ApiError:
    """What an answer with an error says, in the server's own words if it has some."""
    reply = _json(body)
    said = reply if isinstance(reply, dict) else {}
    # Its own routes say `error`, Serverledge's `message`, or a line of plain text.
    line = reply.strip() if isinstance(reply, str) and len(reply) <= _MAX_LINE else ""
    message = str(
        said.get("error") or said.get("message") or line or f"the server answered {status} {reason}"
    )
    return ApiError(status, message, str(said.get("code", "")), reply)


def _json(data: bytes | str) -> Any:
    if not data:
        return None
    try:
        return json.loads(data, object_hook=JsonReply)
    except ValueError:
        return data.decode("utf-8", "replace") if isinstance(data, bytes) else data
