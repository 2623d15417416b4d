"""The dispatcher of HTTP requests: the ASGI application before all routes. In this order: request id, Host
and Origin, the route (404, 405), the caller and its access (`skerry.transport.access.gate`,
`skerry.transport.access.rules`), space on the disk, limits of body and time, the route itself, and afterwards
metrics and one line in the log. Errors of the model become responses only here.

Routes come in two kinds. **Bare** ones are found by one lookup in a dict, by their whole path or by their
first segment, and are called directly: for what must be fast. All others are found by their whole path; if
their template has names in braces, each for one segment, by first segment and then matching. A path is the
same with and without a slash at its end.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import structlog

from skerry.kit import disk_reserve, traces
from skerry.kit.clock import Clock
from skerry.model import errors, ids
from skerry.model.callers import ANONYMOUS, Caller
from skerry.model.settings import HttpSettings
from skerry.transport.access import gate, rules
from skerry.transport.access.sessions import SessionGate
from skerry.transport.http import request_bodies, request_traces, responses
from skerry.transport.http.asgi import ASGIApp, Message, Receive, Scope, Send
from skerry.transport.http.connection import HttpConnection
from skerry.transport.http.direct import (
    CheckedHead,
    DirectHandler,
    DirectHead,
    DirectRequest,
    RequestConnection,
)
from skerry.transport.http.metrics import HTTP_METRICS
from skerry.transport.http.path_templates import PathTemplate
from skerry.transport.http.request_traces import RequestTrace
from skerry.transport.http.responses import ClientDisconnected, HttpError, RouteNotFound, WrongVerb

log = structlog.get_logger(__name__)

# For the log and the metrics only, as nginx has it: the client went away before its answer.
CLIENT_CLOSED_REQUEST = 499

_REQUEST_ID = re.compile(ids.REQUEST_ID_PATTERN.encode())
_ONCE = frozenset({b"host", b"origin", b"authorization", b"content-type", b"content-length"})
_MAX_KNOWN_HOSTS = 256
_PROOF = b"skerry-proof "

ErrorResponse = tuple[int, responses.HttpHeaders, bytes]  # status, headers and body
ErrorShape = Callable[[errors.SkerryError | HttpError, str], ErrorResponse]


class HttpRoute(msgspec.Struct, frozen=True):
    """One verb of one path: its handler, its access rule, and its limits."""

    method: str
    template: str
    app: ASGIApp
    row: rules.AccessRule
    max_body_bytes: int
    timeout_s: float | None  # None for what streams, or bounds itself
    is_quiet: bool = False  # logged at debug only
    error_response: ErrorShape = responses.error_response  # in its own shape
    problems: Mapping[str, Callable[[responses.Problem], Any]] = msgspec.field(
        default_factory=dict
    )  # by what is accepted
    sessions: SessionGate | None = None  # of the web console, which alone open it if they are there
    direct: DirectHandler | None = None  # for those of its POST requests that need no task

    @property
    def adds(self) -> bool:
        """True if it may need space on the disk, and makes none."""
        return self.method in ("PUT", "POST") and f"{self.method} {self.template}" not in rules.ON_FULL_DISK


class _Exchange:
    """One request on its way: what was answered so far, and the `send` that notes it."""

    __slots__ = ("_send", "caller", "id_header", "more", "request_id", "status", "target", "trace")

    def __init__(self, send: Send, id_header: bytes) -> None:
        self._send = send
        self.id_header = id_header
        self.request_id = id_header.decode()
        self.status = 0
        self.more: tuple[tuple[bytes, bytes], ...] = ()  # headers of the answer, whatever that will be
        self.caller: Caller = ANONYMOUS
        self.target: HttpRoute | None = None
        self.trace: RequestTrace | None = None  # of a request that is recorded

    async def send(self, message: Message) -> None:
        if not self.status:
            self.status = message["status"]
            message["headers"] += [*self.more, (b"x-request-id", self.id_header)]
        await self._send(message)

    def answer(
        self, connection: HttpConnection, status: int, headers: tuple[tuple[bytes, bytes], ...], body: bytes
    ) -> bool:
        """The whole answer at once, if `connection` can do that; the length need not be in `headers`."""
        if self.more:
            headers = (*headers, *self.more)
        if self.status or not connection.answer(status, headers, self.id_header, body):
            return False
        self.status = status
        return True

    async def respond(self, status: int, headers: responses.HttpHeaders, body: bytes) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


class ServedHosts(NamedTuple):
    """The names that a server answers to: some for ever, and its own, which may change while it runs."""

    names: frozenset[str]
    own_names: Callable[[], frozenset[str]] = frozenset

    def all(self) -> frozenset[str]:
        return self.names | self.own_names()


class HttpDispatcher:
    """The ASGI app that the server calls."""

    def __init__(
        self,
        *,
        prefix_routes: Mapping[str, Iterable[HttpRoute]],
        routes: Iterable[HttpRoute],
        guard: gate.Guard,
        hosts: ServedHosts | None,
        settings: HttpSettings,
        clock: Clock,
        shapes: Mapping[str, ErrorShape] = MappingProxyType({}),
    ) -> None:
        """`prefix_routes` are keyed by a path (`/healthz`) or a first segment and its slash (`/invoke/`).
        Without `hosts` any name will do, and any origin. `shapes` are those of errors below first segments
        (`/workflow`) that have no route."""
        self._prefix_routes = {
            path: {target.method: target for target in targets} for path, targets in prefix_routes.items()
        }
        self._routes = list(routes)
        # Those of paths by their first segment and the number of segments.
        self._templates: dict[tuple[str, int], list[tuple[PathTemplate, HttpRoute]]] = {}
        self._plain_routes: dict[tuple[str, str], HttpRoute] = {}  # of those, what has no names in its path
        for target in self._routes:
            path = target.template.rstrip("/") or "/"
            template = PathTemplate(path)
            key = _first_segment(path), path.count("/")
            self._templates.setdefault(key, []).append((template, target))
            if not template.names:
                self._plain_routes.setdefault((target.method, path), target)
        # Of a path that nothing is at, errors have the shape of what is beside it: by the first segment.
        self._beside = {_first_segment(target.template): target for target in self.targets()}
        self._shapes = shapes
        self._gate = guard
        self._hosts = hosts
        self._known_hosts: set[bytes] = set()  # Host headers that were found good, as they were sent
        self._settings = settings
        self._clock = clock
        self._direct = {
            prefix: _DirectRoute(self, verbs["POST"], verbs["POST"].direct)
            for prefix, verbs in self._prefix_routes.items()
            if "POST" in verbs and verbs["POST"].direct is not None
        }
        self.direct_prefixes = tuple(prefix.encode() for prefix in self._direct)
        self._new_request_id = _numbered_ids(os.urandom(4))
        # Asked once: what is not logged should cost nothing.
        self._log = log.bind()
        self._is_debugging = self._log.is_enabled_for(logging.DEBUG)

    def targets(self) -> list[HttpRoute]:
        """Everything that is served, for tests and tables."""
        bare = [target for verbs in self._prefix_routes.values() for target in verbs.values()]
        return bare + self._routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server speaks HTTP only"
        started = scope["state"]["started_s"] = self._clock.monotonic()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id")
        trace = None if traces.recorder is None else request_traces.begin(headers)
        if given is None or not _REQUEST_ID.fullmatch(given):
            # What is done for it later is found in its trace by its id.
            given = self._new_request_id() if trace is None else trace.span.request_id.encode()
        exchange = _Exchange(send, given)
        exchange.trace = trace
        # The task is this request's own, so what is bound here needs no unbinding.
        structlog.contextvars.bind_contextvars(request_id=exchange.request_id)
        HTTP_METRICS.in_flight += 1
        try:
            await self._serve(exchange, scope, headers, receive)
        except (errors.SkerryError, HttpError) as error:
            await self._send_error(exchange, scope, error)
        except ClientDisconnected:
            exchange.status = exchange.status or CLIENT_CLOSED_REQUEST
            _drop(scope)
        except asyncio.CancelledError:
            # Only the server's stop cancels requests. The task ends here, so nothing is swallowed.
            await self._send_error(exchange, scope, errors.Unavailable("the server is stopping; try again"))
        except Exception as error:
            log.error("request.failed", path=_logged_path(scope), exc_info=error)
            await self._send_error(exchange, scope, errors.Internal(_fault_text(exchange.request_id)))
        finally:
            HTTP_METRICS.in_flight -= 1
            self._note(exchange, scope, self._clock.monotonic() - started)
            # It refers to the request, which refers to it: separated, both are freed now and not by the
            # collector.
            scope["state"].pop("exchange", None)

    async def _serve(
        self, exchange: _Exchange, scope: Scope, headers: dict[bytes, bytes], receive: Receive
    ) -> None:
        if len(headers) != len(scope["headers"]):
            _refuse_repeated(scope["headers"])
        self._check_names(headers)
        target = exchange.target = self._find(scope)
        state = scope["state"]
        exchange.caller, authenticate = self._admit(target, scope["method"], headers, state["connection"])
        if authenticate is not None:
            state["authenticate"] = authenticate  # again, if the answer is a stream
        state["caller"] = exchange.caller
        state["request_id"] = exchange.request_id
        if exchange.trace is not None:
            state["traceparent"] = exchange.trace.span.traceparent
        state["exchange"] = exchange
        state["headers"] = headers
        length = headers.get(b"content-length")
        if length is not None or b"transfer-encoding" in headers:
            if length is not None and int(length) > target.max_body_bytes:
                raise request_bodies.too_large(target.max_body_bytes)
            # A body with a declared length that has arrived has no limit left to check.
            if length is None or not state["connection"].has_whole_request():
                receive = request_bodies.BoundedBody(
                    receive, target.max_body_bytes, self._settings.body_timeout_s
                )
        if target.timeout_s is None:
            await target.app(scope, receive, exchange.send)
            return
        limit = asyncio.timeout(target.timeout_s)
        try:
            async with limit:
                await target.app(scope, receive, exchange.send)
        except TimeoutError:
            if not limit.expired():
                raise
            raise errors.TimedOut(
                f"this took longer than {target.timeout_s:g} s and was given up; part of it may be done"
            ) from None

    def _admit(
        self, target: HttpRoute, method: str, headers: dict[bytes, bytes], connection: RequestConnection
    ) -> tuple[Caller, Callable[[], Caller] | None]:
        """The caller of a request, who may do it, and what authenticates the caller again."""
        if is_forwarded := gate.is_forwarding(headers):
            connection.distrust()
        shown = headers.get(b"authorization")
        # A request that a buyer signed is checked by its route, which has the body that was signed.
        is_signed = target.row.buyers and shown is not None and shown[: len(_PROOF)].lower() == _PROOF
        caller, authenticate = ANONYMOUS, None
        if not target.row.anybody and not is_signed:
            authenticate = (
                partial(target.sessions.caller, method, headers, connection.peer())
                if target.sessions is not None
                else self._authenticator(headers, connection, is_forwarded=is_forwarded)
            )
            caller = authenticate()
            _authorize(target, caller, connection)
        _check_disk(target)
        return caller, authenticate

    def _authenticator(
        self, headers: dict[bytes, bytes], connection: RequestConnection, *, is_forwarded: bool
    ) -> Callable[[], Caller]:
        shown = headers.get(b"authorization")
        return partial(
            self._gate.caller,
            connection.peer(),
            None if shown is None else shown.decode("latin-1"),
            is_forwarded=is_forwarded,
        )

    def _check_names(self, headers: dict[bytes, bytes]) -> None:
        if self._hosts is None:
            return
        host = headers.get(b"host")
        if host is None or host not in self._known_hosts:
            gate.check_host(None if host is None else host.decode("latin-1"), self._hosts.all())
            if host is not None and len(self._known_hosts) < _MAX_KNOWN_HOSTS:
                self._known_hosts.add(host)
        origin = headers.get(b"origin")
        if origin is not None:
            gate.check_origin(
                origin.decode("latin-1"),
                self._hosts.all(),
                host_header=host.decode("latin-1") if host else None,
            )

    def _find(self, scope: Scope) -> HttpRoute:
        """The target of this request; 404 for an unknown path, 405 for a verb that the path does not have."""
        method = scope["method"]
        sought = "GET" if method == "HEAD" else method
        path = scope["path"]
        if len(path) > 1 and path.endswith("/"):
            path = scope["path"] = path[:-1]
        first = _first_segment(path)
        verbs = self._prefix_routes.get(path)
        if verbs is None and len(first) < len(path):
            verbs = self._prefix_routes.get(path[: len(first) + 1])
        if verbs is not None:
            if (target := verbs.get(sought)) is not None:
                return target
            raise _wrong_verb(method, verbs)
        plain = self._plain_routes.get((sought, path))
        if plain is not None:
            scope["path_params"] = {}
            return plain
        allowed = set()
        segments = path.split("/")
        for template, target in self._templates.get((first, len(segments) - 1), ()):
            if (values := template.match(segments)) is None:
                continue
            if target.method == sought:
                scope["path_params"] = values
                return target
            allowed.add(target.method)
        if (
            allowed and path != "/"
        ):  # that is for browsers alone; to programs it is no path, whatever the verb
            raise _wrong_verb(method, allowed)
        raise RouteNotFound("there is nothing at this path; /openapi.json lists all paths")

    # Requests without a task

    def begin(self, request: DirectRequest) -> bool:
        """Take a request that may be direct; False, with nothing done, if it is not."""
        if traces.recorder is not None:
            return False
        head = request.head
        checked = head.checked or self._unchecked(head)
        context = request.context = checked.context
        if len(request.body) > context.max_body_bytes:
            return False
        request.started = self._clock.monotonic()
        request.request_id = checked.request_id or self._new_request_id()
        HTTP_METRICS.in_flight += 1
        try:
            if head.checked is None:
                checked = head.checked = self._check_head(checked, head, request.connection)
            caller = request.caller = checked.authenticate()
            context.admit(caller, request.connection)
            if context.handler.begin(request):
                return True
        except Exception as error:  # noqa: BLE001 - distinguished there
            request.fail(error)
            return True
        HTTP_METRICS.in_flight -= 1
        return False

    def _unchecked(self, head: DirectHead) -> CheckedHead:
        route = self._direct[head.path[: head.path.index("/", 1) + 1]]
        given = head.headers.get(b"x-request-id")
        is_given = given is not None and _REQUEST_ID.fullmatch(given)
        return CheckedHead(route, given if is_given else None, lambda: ANONYMOUS)

    def _check_head(
        self, unchecked: CheckedHead, head: DirectHead, connection: RequestConnection
    ) -> CheckedHead:
        self._check_names(head.headers)
        if is_forwarded := gate.is_forwarding(head.headers):
            connection.distrust()
        return unchecked._replace(
            authenticate=self._authenticator(head.headers, connection, is_forwarded=is_forwarded)
        )

    def note_direct(self, target: HttpRoute, request: DirectRequest, status: int) -> None:
        """It was answered."""
        HTTP_METRICS.in_flight -= 1
        seconds = self._clock.monotonic() - request.started
        HTTP_METRICS.note(target.template, target.method, status, seconds)
        if self._is_debugging:
            self._log.debug(
                "request.answered",
                method=target.method,
                path=request.path,
                status=status,
                ms=round(seconds * 1000, 2),
                caller=request.caller.name,
                request_id=request.request_id.decode(),
            )

    async def _send_error(
        self, exchange: _Exchange, scope: Scope, error: errors.SkerryError | HttpError
    ) -> None:
        if isinstance(error, errors.SkerryError) and error.detail:
            log.info("request.detail", code=error.slug, detail=error.detail)
        if exchange.status:
            # The answer has begun and cannot be taken back; only breaking off shows that it is no good.
            log.warning("request.broken", path=_logged_path(scope), error=error.message)
            _drop(scope)
        else:
            segment = _first_segment(scope["path"])
            target = exchange.target or self._beside.get(segment)
            if target is None:
                response = self._shapes.get(segment, responses.error_response)(error, exchange.request_id)
            else:
                response = _error_response(target, dict(scope["headers"]), error, exchange.request_id)
            await exchange.respond(*response)

    def _note(self, exchange: _Exchange, scope: Scope, seconds: float) -> None:
        target = exchange.target
        method = scope["method"]
        HTTP_METRICS.note(None if target is None else target.template, method, exchange.status, seconds)
        if exchange.trace is not None and target is not None:
            request_traces.end(exchange.trace, method, target.template, exchange.status, seconds)
        is_quiet = target is not None and target.is_quiet
        if is_quiet and not self._is_debugging:
            return
        write = self._log.debug if is_quiet else self._log.info
        write(
            "request.answered",
            method=method,
            path=_logged_path(scope),
            status=exchange.status,
            ms=round(seconds * 1000, 2),
            caller=exchange.caller.name,
        )


class _DirectRoute:
    """A route that answers without a task; the `DirectContext` of its requests."""

    def __init__(self, dispatcher: HttpDispatcher, target: HttpRoute, handler: DirectHandler | None) -> None:
        assert handler is not None, "it has one"
        assert target.is_quiet, "its requests are not logged"
        assert target.sessions is None, "its callers are the gate's"
        self._dispatcher = dispatcher
        self.target = target
        self.handler = handler
        self.max_body_bytes = target.max_body_bytes

    def admit(self, caller: Caller, connection: RequestConnection) -> None:
        _authorize(self.target, caller, connection)
        _check_disk(self.target)

    def answered(self, request: DirectRequest, status: int) -> None:
        self._dispatcher.note_direct(self.target, request, status)

    def error_response(self, request: DirectRequest, error: Exception) -> tuple[int, bytes, bytes]:
        request_id = request.request_id.decode()
        if not isinstance(error, errors.SkerryError | HttpError):
            log.error("request.failed", path=request.path, request_id=request_id, exc_info=error)
            error = errors.Internal(_fault_text(request_id))
        elif isinstance(error, errors.SkerryError) and error.detail:
            log.info("request.detail", code=error.slug, detail=error.detail, request_id=request_id)
        status, headers, body = _error_response(self.target, request.headers, error, request_id)
        lines = (b"%b: %b\r\n" % line for line in headers if line[0] != b"content-length")
        return status, b"".join(lines), body


def _authorize(target: HttpRoute, caller: Caller, connection: RequestConnection) -> None:
    rules.authorize(target.row, caller)
    if caller.role is not None:
        connection.recognize()


def _check_disk(target: HttpRoute) -> None:
    if (shortage := disk_reserve.shortage()) and target.adds:
        raise errors.Unavailable(f"this server takes nothing new: {shortage}")


def _fault_text(request_id: str) -> str:
    return f"a fault of this server; its log says more under request id {request_id}"


def _numbered_ids(chance: bytes) -> Callable[[], bytes]:
    """Ids that no other process makes: its own chance, then numbers."""
    prefix = chance.hex()
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers):08x}".encode()


def _error_response(
    target: HttpRoute,
    headers: Mapping[bytes, bytes],
    error: errors.SkerryError | HttpError,
    request_id: str,
) -> ErrorResponse:
    """The response of `target`, or of the routes beside it, for `error` and these request headers."""
    for media, shape in target.problems.items():
        if responses.accepts(headers, media):
            return responses.in_shape(error, request_id, media, shape)
    return target.error_response(error, request_id)


def _first_segment(path: str) -> str:
    end = path.find("/", 1)
    return path if end < 0 else path[:end]


def _wrong_verb(method: str, allowed: Iterable[str]) -> WrongVerb:
    verbs = set(allowed)
    return WrongVerb(method, verbs | {"HEAD"} if "GET" in verbs else verbs)


def _refuse_repeated(headers: list[tuple[bytes, bytes]]) -> None:
    """Two programs on the way could each believe another one of them."""
    seen = set()
    for name, _ in headers:
        if name in _ONCE and name in seen:
            raise errors.Invalid(f"the header {name.decode()} may be sent only once", field=name.decode())
        seen.add(name)


def _drop(scope: Scope) -> None:
    scope["state"]["connection"].drop()


def _logged_path(scope: Scope) -> str:
    """Percent-encoded as it came, so that a client cannot write lines into the log."""
    return str(scope["raw_path"].decode("ascii", "replace"))
