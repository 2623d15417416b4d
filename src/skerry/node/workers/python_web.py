"""Calls web handlers of Python functions: functions of a request, WSGI and ASGI applications.

Standard library only; requests and responses are `python_web_call`'s, threads and the socket are
`python_worker`'s. What kind of handler it is shows its signature: (scope, receive, send) is ASGI, a second
parameter `start_response` is WSGI, and all others take a request. Whatever they return or send is checked
before it leaves the worker, and once more by the agent.
"""

from __future__ import annotations

import inspect
import io
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from skerry.node.workers import python_handlers
from skerry.node.workers.python_handlers import NotLoadable, Unrepresentable
from skerry.node.workers.python_web_call import ClientGone, Request, ResponseSender

Await = Callable[[Any], Any]  # runs a coroutine to its end, in the worker's loop
_Pairs = list[tuple[str, str]]

_TEXT: Final = "text/plain; charset=utf-8"
_JSON: Final = "application/json"
_BYTES: Final = "application/octet-stream"
_NO_BODY: Final = frozenset({204, 304})
_MAX_HEADERS: Final = 256
_MAX_HEAD_BYTES: Final = 64 * 1024
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_RESPONSE_KEYS: Final = frozenset({"status", "headers", "body"})
_CONTENT_LENGTH: Final = "content-length"


class _Response(NamedTuple):
    status: int
    headers: _Pairs
    body: Any  # bytes, an iterator or an async iterator of parts


class WebHandler:
    """A loaded handler, of any of the three kinds."""

    def __init__(self, handler: Any, name: str) -> None:
        """Raises NotLoadable."""
        self._handler = handler
        self._lifespan: _Lifespan | None = None
        names = _parameters(handler)
        if names[:3] == ["scope", "receive", "send"]:
            self._respond: Callable[[Request, ResponseSender, Await], None] = self._respond_asgi
            self._lifespan = _Lifespan(handler)
        elif len(names) > 1 and names[1] == "start_response":
            self._respond = self._respond_wsgi
        else:
            self._call = python_handlers.adapt(handler, name, "request")
            self._respond = self._respond_handler

    def start(self, wait: Await) -> None:
        """Before its first request. Raises what an ASGI application raises at its start."""
        if self._lifespan is not None:
            wait(self._lifespan.start())

    def respond(self, request: Request, sender: ResponseSender, wait: Await) -> None:
        """Answer a request. Raises what the handler raises, Unrepresentable, and ClientGone."""
        self._respond(request, sender, wait)

    # A function of a request

    def _respond_handler(self, request: Request, sender: ResponseSender, wait: Await) -> None:
        value = self._call(request, request.context)
        if inspect.isawaitable(value):
            value = wait(value)
        response = to_response(value)
        body, has_body = response.body, request.method != "HEAD" and response.status not in _NO_BODY
        if isinstance(body, bytes):
            sender.begin(*_with_length(response))
            if has_body:
                sender.finish_with(body)
            return
        if hasattr(body, "__anext__"):
            wait(_send_async(response, sender, has_body=has_body))
            return
        try:
            sender.begin(response.status, response.headers, at_once=True)
            if has_body:
                for part in body:
                    sender.part(_to_bytes(part))
        finally:
            if (close := getattr(body, "close", None)) is not None:
                close()

    # WSGI

    def _respond_wsgi(self, request: Request, sender: ResponseSender, wait: Await) -> None:
        started: list[tuple[int, _Pairs]] = []
        has_body = request.method != "HEAD"

        def write(data: bytes) -> None:
            nonlocal has_body
            if not started:
                raise Unrepresentable("the application sent a body before it called start_response")
            if not sender.has_begun:
                status, headers = started[-1]
                has_body = has_body and status not in _NO_BODY
                sender.begin(status, headers)
            if has_body and data:
                sender.part(_to_bytes(data))

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if exc_info is not None and sender.has_begun:
                raise exc_info[1].with_traceback(exc_info[2])
            code = status.partition(" ")[0]
            if not code.isdigit():
                raise Unrepresentable(f"{status[:60]!r} is no status such as '200 OK'")
            started.append((_status(int(code)), _headers(headers)))
            return write

        parts = self._handler(_wsgi_environment(request), start_response)
        try:
            for part in parts:
                if part or not sender.has_begun:
                    write(part)
            write(b"")
        finally:
            if (close := getattr(parts, "close", None)) is not None:
                close()

    # ASGI

    def _respond_asgi(self, request: Request, sender: ResponseSender, wait: Await) -> None:
        wait(self._run_asgi(request, sender))

    async def _run_asgi(self, request: Request, sender: ResponseSender) -> None:
        import asyncio

        unread, is_over = [request.body], asyncio.Event()
        started: list[tuple[int, _Pairs]] = []
        has_body = request.method != "HEAD"

        async def receive() -> dict[str, Any]:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await is_over.wait()
            return {"type": "http.disconnect"}

        async def send(message: Mapping[str, Any]) -> None:
            nonlocal has_body
            kind = message.get("type")
            if kind == "http.response.start" and not started:
                status = _status(message["status"])
                started.append((status, _headers(message.get("headers", ()))))
                has_body = has_body and status not in _NO_BODY
            elif kind == "http.response.body" and started and not is_over.is_set():
                if not sender.has_begun:
                    sender.begin(*started[0])
                if has_body:
                    await sender.part_async(_to_bytes(message.get("body", b"")))
                if not message.get("more_body", False):
                    is_over.set()
            else:
                raise Unrepresentable(f"the application sent {kind!r} where that cannot come")

        try:
            await self._handler(_asgi_scope(request, self._lifespan), receive, send)
        finally:
            is_over.set()
        if not started or not sender.has_begun:
            raise Unrepresentable("the application returned before it had sent its response")


def call_with_params(handler: WebHandler, params: Any, context: dict[str, Any], wait: Await) -> Any:
    """A call by `/invoke`: the parameters are the JSON body of a POST to `/`; the response is returned."""
    body = python_handlers.to_json(params)
    head = {
        "method": "POST",
        "path": "/",
        "query": "",
        "headers": [("content-type", _JSON), (_CONTENT_LENGTH, str(len(body)))],
        "client": "",
        "scheme": "http",
        "root_path": "",
        "caller": "",
    }
    collector = _Collector()
    handler.respond(Request(head, body, context), collector, wait)
    return collector.result()


class _Collector(ResponseSender):
    """Keeps the response of a call by `/invoke`, where there is nobody to stream it to."""

    def __init__(self) -> None:
        super().__init__(0, lambda frame: None)
        self._status, self._headers, self._parts = 0, _Pairs(), list[bytes]()

    def begin(self, status: int, headers: _Pairs, *, at_once: bool = False) -> None:
        self.has_begun = True
        self._status, self._headers = status, headers

    def finish_with(self, body: bytes) -> None:
        self._parts.append(body)

    def part(self, data: bytes) -> None:
        self._parts.append(data)

    async def part_async(self, data: bytes) -> None:
        self._parts.append(data)

    def result(self) -> dict[str, Any]:
        body: Any = b"".join(self._parts)
        kind = next((value for name, value in self._headers if name == "content-type"), "")
        if kind.partition(";")[0].strip() == _JSON:
            body = json.loads(body)
        return {"status": self._status, "headers": self._headers, "body": body}


class _Lifespan:
    """The start of an ASGI application, which runs until the worker ends."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.state: dict[str, Any] = {}
        self._task: Any = None

    async def start(self) -> None:
        import asyncio

        outcome = asyncio.get_running_loop().create_future()
        messages = [{"type": "lifespan.startup"}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()
            raise AssertionError("workers are killed")

        async def send(message: Mapping[str, Any]) -> None:
            if outcome.done():
                return
            if message["type"] == "lifespan.startup.complete":
                outcome.set_result(None)
            elif message["type"] == "lifespan.startup.failed":
                outcome.set_exception(NotLoadable(f"its start failed: {message.get('message', '')}"))

        async def run() -> None:
            try:
                scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": self.state}
                await self._app(scope, receive, send)
            except Exception:  # noqa: BLE001, S110 - it does not know lifespans, which is allowed
                pass
            if not outcome.done():
                outcome.set_result(None)

        self._task = asyncio.ensure_future(run())
        await outcome


def to_response(value: Any) -> _Response:
    """What a handler has returned, as status, headers and body. Raises Unrepresentable."""
    if isinstance(value, _Response):
        return value
    status, headers, body = 200, (), value
    if isinstance(value, tuple):
        if len(value) == 3:
            status, headers, body = value
        elif len(value) == 2:
            status, body = value
        else:
            raise Unrepresentable(
                f"the handler returned a tuple of {len(value)}; return (status, body) or "
                "(status, headers, body)"
            )
    elif isinstance(value, dict):
        if value and _RESPONSE_KEYS.issuperset(value) and ("status" in value or "body" in value):
            status = value.get("status", 200)
            headers, body = value.get("headers", ()), value.get("body")
    elif value is None:
        status = 204
    elif hasattr(value, "status") and hasattr(value, "headers") and hasattr(value, "body"):
        status, headers, body = value.status, value.headers, value.body
    listed, checked = _headers(headers), _status(status)
    content, media = _body(body)
    if media and checked not in _NO_BODY and not any(name == "content-type" for name, _ in listed):
        listed.append(("content-type", media))
    return _Response(checked, listed, content)


def _body(body: Any) -> tuple[Any, str]:
    """Bytes or an iterator, and its usual media type."""
    if body is None:
        return b"", ""
    if isinstance(body, str):
        return body.encode("utf-8", "replace"), _TEXT
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body), _BYTES
    if isinstance(body, Iterator) or hasattr(body, "__anext__"):
        return body, _BYTES
    return python_handlers.to_json(body), _JSON


def _status(status: Any) -> int:
    if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
        raise Unrepresentable(f"{status!r:.60} is no status of a response; use a number from 200 to 599")
    return int(status)


def _headers(headers: Any) -> _Pairs:
    """A mapping, whose values may be lists, or pairs."""
    if isinstance(headers, Mapping):
        headers = headers.items()
    found: _Pairs = []
    try:
        for name, value in headers or ():
            values = value if isinstance(value, (list, tuple)) else (value,)
            found += ((_text(name).lower(), _text(each).strip(" \t")) for each in values)
    except (TypeError, ValueError) as error:
        raise Unrepresentable(f"headers must be a dict or a list of pairs: {error}") from None
    if len(found) > _MAX_HEADERS or sum(len(name) + len(text) for name, text in found) > _MAX_HEAD_BYTES:
        raise Unrepresentable(
            f"a response has at most {_MAX_HEADERS} headers of {_MAX_HEAD_BYTES} bytes together; send less"
        )
    for name, text in found:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(text):
            raise Unrepresentable(f"the header {name!r:.60} with the value {text!r:.60} cannot be sent")
    return found


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        return str(value)
    raise TypeError(f"{value!r:.60} is no text")


def _with_length(response: _Response) -> tuple[int, _Pairs]:
    headers = [pair for pair in response.headers if pair[0] != _CONTENT_LENGTH]
    if response.status not in _NO_BODY:
        headers.append((_CONTENT_LENGTH, str(len(response.body))))
    return response.status, headers


def _to_bytes(part: Any) -> bytes:
    if isinstance(part, bytes):
        return part
    if isinstance(part, str):
        return part.encode("utf-8", "replace")
    if isinstance(part, (bytearray, memoryview)):
        return bytes(part)
    raise Unrepresentable(f"a part of a response is text or bytes, and not {type(part).__name__}")


async def _send_async(response: _Response, sender: ResponseSender, *, has_body: bool) -> None:
    sender.begin(response.status, response.headers, at_once=True)
    try:
        if has_body:
            async for part in response.body:
                await sender.part_async(_to_bytes(part))
    finally:
        close: Callable[[], Awaitable[None]] | None = getattr(response.body, "aclose", None)
        if close is not None:
            await close()


def _parameters(handler: Any) -> list[str]:
    try:
        return list(inspect.signature(handler).parameters)
    except (TypeError, ValueError):
        return []


def _wsgi_environment(request: Request) -> dict[str, Any]:
    host, _, port = request.headers.get("host", "localhost").partition(":")
    environment: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": request.root_path,
        "PATH_INFO": request.path.encode().decode("latin-1"),
        "QUERY_STRING": request.query_string,
        "SERVER_NAME": host,
        "SERVER_PORT": port or ("443" if request.scheme == "https" else "80"),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": request.client,
        "CONTENT_LENGTH": str(len(request.body)),
        "CONTENT_TYPE": request.headers.get("content-type", ""),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": request.scheme,
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name in request.headers:
        # A name with an underscore could stand for another header.
        if "_" not in name and name not in (_CONTENT_LENGTH, "content-type", "proxy"):
            separator = "; " if name == "cookie" else ","
            key = f"HTTP_{name.upper().replace('-', '_')}"
            environment[key] = separator.join(request.headers.all(name))
    return environment


def _asgi_scope(request: Request, lifespan: _Lifespan | None) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.raw_path.encode("ascii", "replace"),
        "query_string": request.query_string.encode("ascii", "replace"),
        "root_path": request.root_path,
        "headers": _encoded(request.headers.pairs()),
        "client": (request.client, 0) if request.client else None,
        "server": None,
        "state": dict(lifespan.state) if lifespan is not None else {},
    }


def _encoded(pairs: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in pairs]


__all__ = ["ClientGone", "WebHandler", "call_with_params", "to_response"]
