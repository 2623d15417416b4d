"""HTTP client of a server: requests, streams, and errors.

Only the standard library: a command must start quickly and must not load server code. The server is found by
`skerry.client.discovery`. Its unix socket is tried first, then TCP.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from skerry.client.discovery import ServerTarget
from skerry.client.errors import ApiError, IncompleteReply, InvalidTarget, ServerUnreachable, UnexpectedReply
from skerry.kit import unix_addresses

T = TypeVar("T")

JsonObject = dict[str, Any]

_MAX_REPLY = 64 * 1024 * 1024
_CHUNK = 64 * 1024
_HOST = "localhost"  # over a unix socket
_TIMEOUT_S = 60.0
_DEFAULT = -1.0  # the timeout of the client
_SLOW_S = 1.0
_MAX_LINE = 200  # longer texts are pages of a proxy


class JsonReply(dict[str, Any]):
    """A JSON object of the server; a missing field is an `UnexpectedReply`."""

    def __missing__(self, key: str) -> Any:
        raise UnexpectedReply(f"The reply of the server has no '{key}'")


class WebSocketTarget(NamedTuple):
    """URL, headers, and either TLS or a connected socket."""

    url: str
    headers: dict[str, str]
    tls: ssl.SSLContext | None
    socket: socket.socket | None


@contextmanager
def _report_if_slow(report: Callable[[str], None] | None, url: str) -> Iterator[None]:
    """Report if a connection takes more than a second."""
    if report is None:
        yield
        return
    timer = threading.Timer(_SLOW_S, report, (f"No answer from {url} yet; waiting.",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class ApiClient:
    """One server, called over HTTP. `report_slow` gets a message if a connection takes more than a second;
    `namespace` is that of every call, if it is given; `timeout_s` of calls that have none of their own."""

    def __init__(
        self,
        target: ServerTarget,
        report_slow: Callable[[str], None] | None = None,
        *,
        namespace: str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self.target = target
        self._timeout_s = timeout_s
        self._namespace = namespace
        self._report_slow = report_slow
        self._split = target.split
        self._socket_error: OSError | None = None

    def get(self, *path: str, **query: str | None) -> JsonObject:
        return self._call("GET", path, query)

    def get_list(self, *path: str, **query: str | None) -> list[Any]:
        """For routes that answer with a JSON array."""
        with self._exchange("GET", path, query, None) as response:
            _raise_for(response)
            return _expect(list, _read(response))

    def get_text(self, *path: str, **query: str | None) -> str:
        """For routes that answer with text."""
        with self._exchange("GET", path, query, None, headers={"Accept": "*/*"}) as response:
            _raise_for(response)
            return _read(response).decode("utf-8", "replace")

    def post(self, *path: str, body: Any = None, timeout: float | None = _DEFAULT) -> JsonObject:
        """`body` is sent as JSON, or unchanged if it is bytes."""
        return self._call("POST", path, {}, body, timeout)

    def put(self, *path: str, body: Any = None, **query: str | None) -> JsonObject:
        return self._call("PUT", path, query, body)

    def patch(self, *path: str, body: Any, **query: str | None) -> JsonObject:
        return self._call("PATCH", path, query, body)

    def delete(self, *path: str, **query: str | None) -> JsonObject:
        return self._call("DELETE", path, query)

    def stream(self, *path: str, headers: dict[str, str] | None = None, **query: str | None) -> Iterator[str]:
        """The lines of an endless reply, as they come; `IncompleteReply` if it breaks off."""
        with self._open("GET", path, query, headers) as response, _whole():
            for line in response:
                yield line.decode("utf-8", "replace").rstrip("\r\n")

    def steps(self, *path: str, body: Any) -> Iterator[JsonObject]:
        """The reply of a POST, a JSON object per line as they come; `IncompleteReply` if it breaks off."""
        with self._open("POST", path, {}, body=body) as response, _whole():
            for line in response:
                yield parse_object(line)

    def output(self, *path: str, **query: str | None) -> Iterator[bytes]:
        """The bytes of an endless reply, as they come; `IncompleteReply` if it breaks off."""
        with self._open("GET", path, query, {"Accept": "*/*"}) as response, _whole():
            while data := response.read1(_CHUNK):
                yield data

    def download(self, *path: str) -> Iterator[bytes]:
        """The bytes of the reply of a POST, as they come; `IncompleteReply` if it breaks off."""
        with self._open("POST", path, {}, {"Accept": "*/*"}) as response, _whole():
            while data := response.read1(_CHUNK):
                yield data

    def websocket(self, *path: str, **query: Any) -> WebSocketTarget:
        """What a WebSocket client needs to connect to `path`; lists in `query` are repeated."""
        where, headers = self._target(path, query), self._headers({})
        connected = self._connect_socket(self._timeout_s)
        if connected is not None or self._split is None:
            return WebSocketTarget(f"ws://{_HOST}{where}", headers, None, connected)
        if self._split.scheme == "http":
            return WebSocketTarget(f"ws://{self._split.netloc}{where}", headers, None, None)
        return WebSocketTarget(f"wss://{self._split.netloc}{where}", headers, self._tls(), None)

    def get_with_status(self, *path: str) -> tuple[int, Any]:
        """Status and JSON of a GET, also if the status is an error: for health checks."""
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
        timeout: float | None = _DEFAULT,
    ) -> JsonObject:
        """The reply; empty if it has no content."""
        with self._exchange(verb, path, query, body, timeout) as response:
            _raise_for(response)
            data = _read(response)
            return {} if response.status == HTTPStatus.NO_CONTENT else parse_object(data)

    @contextmanager
    def _exchange(
        self,
        verb: str,
        path: tuple[str, ...],
        query: dict[str, str | None],
        body: Any,
        timeout: float | None = _DEFAULT,
        headers: dict[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """A request, and its response within this block."""
        target = self._target(path, query)
        sent = self._headers({"Accept": "application/json", **(headers or {})})
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        timeout = self._timeout_s if timeout == _DEFAULT else timeout
        with closing(self._connection(timeout)) as connection:
            try:
                if connection.sock is None:
                    with _report_if_slow(self._report_slow, self.target.url):
                        connection.connect()
                connection.request(verb, target, body=data, headers=sent)
                response = connection.getresponse()
            except ssl.SSLCertVerificationError as error:
                raise self.not_trusted(error) from None
            except (OSError, http.client.HTTPException, UnicodeError) as error:  # the last: not a host name
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
        """A connection to the unix socket of the server; None if there is none, or it refuses us: use TCP."""
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
            return ssl.create_default_context(cafile=self.target.ca, cadata=self.target.ca_text or None)
        except OSError as error:
            if self.target.ca_text:
                raise InvalidTarget(f"The CA certificate of {self.target.found_by} is invalid.") from None
            raise InvalidTarget(f"The CA file {self.target.ca} cannot be read: {error}") from None

    def _target(self, path: tuple[str, ...], query: dict[str, Any]) -> str:
        where = "/" + "/".join(quote(part, safe="") for part in path)
        query = {"namespace": self._namespace, **query}
        given = {name: value for name, value in query.items() if value is not None}
        query_text = f"?{urlencode(given, doseq=True)}" if given else ""
        below = "" if self._split is None else self._split.path.rstrip("/")
        return f"{below}{where}{query_text}"

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        if self.target.token:
            return {**more, "Authorization": f"Bearer {self.target.token}"}
        return more

    def not_reached(self, error: Exception) -> ServerUnreachable:
        """The error if nothing answers."""
        nor = ""
        if self._socket_error is not None:
            nor = f" Its socket {self.target.socket} failed too: {self._socket_error.strerror}."
        return ServerUnreachable(
            f"Nothing answers at {self.target.url} (found by {self.target.found_by}): "
            f"{error or type(error).__name__}.{nor} Is Skerry running there?"
        )

    def not_trusted(self, error: ssl.SSLCertVerificationError) -> ServerUnreachable:
        """The error if the certificate of the server is not trusted."""
        return ServerUnreachable(
            f"The certificate of {self.target.url} cannot be verified ({error.verify_message}). "
            "Give the CA of the server with --ca or SKERRY_CA: the file pki/ca.crt in its data folder."
        )


@contextmanager
def _whole() -> Iterator[None]:
    """Errors while reading are an `IncompleteReply`."""
    try:
        yield
    except (OSError, http.client.HTTPException):
        raise IncompleteReply(
            "The reply of the server broke off and is incomplete. Is the server running? Try again."
        ) from None


def _raise_for(response: http.client.HTTPResponse) -> None:
    if response.status >= 400:
        raise error_from_reply(response.status, response.reason, _read(response))


def _read(response: http.client.HTTPResponse) -> bytes:
    with _whole():
        return response.read(_MAX_REPLY)


def parse_object(data: bytes | str) -> JsonReply:
    """A JSON object that the server sent."""
    return _expect(JsonReply, data)


def _expect(kind: type[T], data: bytes | str) -> T:
    reply = _json(data)
    if not isinstance(reply, kind):
        raise UnexpectedReply("Something answers, but it is not Skerry")
    return reply


def error_from_reply(status: int, reason: str, body: bytes) -> ApiError:
    """The error of a reply, with the message of the server if it has one."""
    reply = _json(body)
    fields = reply if isinstance(reply, dict) else {}
    # Skerry's own routes have `error`, Serverledge's `message` or a line of plain text.
    line = reply.strip() if isinstance(reply, str) and len(reply) <= _MAX_LINE else ""
    message = str(
        fields.get("error") or fields.get("message") or line or f"the server answered {status} {reason}"
    )
    return ApiError(status, message, str(fields.get("code", "")), reply)


def _json(data: bytes | str) -> Any:
    if not data:
        return None
    try:
        return json.loads(data, object_hook=JsonReply)
    except ValueError:
        return data.decode("utf-8", "replace") if isinstance(data, bytes) else data
