"""Serves web functions: the request is handed to a worker, and its response is written as it comes.

The call takes the way of all calls (`skerry.functions`), with its queue, limits and offloading. The response
is read only as fast as the client takes it. If the client leaves, its call is ended: in order, if the worker
does that soon, else with its worker. A call that fails before its response begins is answered without
details, which are in the log; one that fails later is broken off, so that nobody takes it for whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final, NoReturn

import structlog

from skerry.kit import tasks
from skerry.kit.response_stream import ResponseStream
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.calls import CallFailure, CallReport
from skerry.model.ids import FunctionName
from skerry.model.web_calls import NO_BODY, WebCallRequest, WebRequestHead, WebResponseHead, encode_request
from skerry.transport.access import rules
from skerry.transport.access.gate import Guard
from skerry.transport.access.peers import ConnectionPeer
from skerry.transport.http import request_bodies, streaming
from skerry.transport.http.asgi import Receive, Scope, Send
from skerry.transport.http.connection import HttpConnection
from skerry.transport.http.responses import ClientDisconnected, HttpError
from skerry.wire.own.web_functions import requests
from skerry.wire.own.web_functions.context import WebFunctionContext

log = structlog.get_logger(__name__)

_SHORT_S: Final = 1.0  # of longer responses it is watched whether they may go on
_LEAVE_S: Final = 1.0  # for a handler to end in order after its client has left
_RETRY: Final = ((b"retry-after", b"1"),)
# On the port of the API, pages of functions are of another origin than the API itself: their scripts could
# else use it as the local user who looks at them.
_SANDBOX: Final = (b"content-security-policy", b"sandbox allow-forms allow-scripts allow-popups")
_MAX_LOGGED: Final = 500
_STATUSES: Final = {
    CallFailure.HANDLER: (500, "function-failed", "the function failed"),
    CallFailure.RESULT: (502, "bad-response", "the function gave no valid response"),
    CallFailure.LOAD: (502, "function-failed", "the function could not be loaded"),
    CallFailure.MEMORY: (502, "function-failed", "the function ended before it had answered"),
    CallFailure.DIED: (502, "function-failed", "the function ended before it had answered"),
    CallFailure.INTERRUPTED: (502, "function-failed", "the function was interrupted"),
    CallFailure.TIMEOUT: (504, "timed-out", "the function did not answer in its time"),
    CallFailure.NO_ROOM: (503, "overloaded", "all workers are busy; try again in a moment"),
}


class WebFunctionApp:
    """The requests of clients that call this server itself; access was checked before."""

    def __init__(self, context: WebFunctionContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = scope["state"]["caller"]
        target = requests.WebTarget(scope["raw_path"])
        key = requests.key_for(caller, target.key)
        head = requests.request_head(scope, target, caller)
        await serve(self._context, key, head, scope, receive, send, extra=(_SANDBOX,))


class RoutedWebFunctionApp:
    """The requests that a proxy brings to the socket for routes. Nobody is known by that connection: a route
    is public, or the caller shows a token."""

    def __init__(self, context: WebFunctionContext, guard: Guard, row: rules.AccessRule) -> None:
        self._context = context
        self._guard = guard
        self._row = row

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["state"]["headers"]
        caller: Caller | None = None
        if not requests.is_public(headers):
            shown = headers.get(b"authorization")
            authenticate = partial(
                self._guard.caller,
                ConnectionPeer(requests.forwarded_client(headers)),
                None if shown is None else shown.decode("latin-1"),
                is_forwarded=True,
            )
            caller = authenticate()
            rules.authorize(self._row, caller)
            scope["state"]["authenticate"] = authenticate
        target = requests.WebTarget(scope["raw_path"])
        key = requests.exact_key(caller, target.key)
        await serve(
            self._context, key, requests.routed_head(scope, headers, target, caller), scope, receive, send
        )


async def serve(
    context: WebFunctionContext,
    key: FunctionName,
    head: WebRequestHead,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    extra: tuple[tuple[bytes, bytes], ...] = (),
) -> None:
    """Call the function, and write its response with `extra` headers. Raises `NotFound` if it is no web
    function, and what the dispatcher makes an answer of."""
    function = context.functions.get(key)
    if function is None or not function.is_web:
        raise requests.unknown_function()
    body = await request_bodies.read_whole(receive)
    response: ResponseStream[WebResponseHead] = ResponseStream()
    request = WebCallRequest(
        function=key,
        params=encode_request(head, body),
        response=response,
        traceparent=scope["state"].get("traceparent", ""),
    )
    del body
    call = asyncio.ensure_future(context.invoker.invoke(request))
    call.add_done_callback(lambda _: response.end())
    watch = _ResponseWatch(scope, response)
    writer = _ResponseWriter(key, head.method, call, response, send, extra)
    try:
        await writer.write()
        if watch.reason is not None:
            raise watch.reason
    finally:
        watch.close()
        await _leave(call, response)


class _ResponseWriter:
    """Writes the response of one call."""

    def __init__(
        self,
        key: FunctionName,
        method: str,
        call: asyncio.Future[CallReport],
        response: ResponseStream[WebResponseHead],
        send: Send,
        extra: tuple[tuple[bytes, bytes], ...],
    ) -> None:
        self._key = key
        self._method = method
        self._call = call
        self._response = response
        self._send = send
        self._extra = extra

    async def write(self) -> None:
        """Until it is complete, or was abandoned."""
        head = await self._response.wait_head()
        if self._is_abandoned():
            return
        if head is None:
            raise self._failure(await self._report())
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head.headers]
        await self._in_time(
            self._send(
                {
                    "type": "http.response.start",
                    "status": head.status,
                    "headers": [*headers, *self._extra],
                }
            )
        )
        has_body = self._method != "HEAD" and head.status not in NO_BODY
        left = head.content_length if has_body else None
        while part := await self._response.read():
            if not has_body:
                continue
            if left is not None:
                left -= len(part)
                if left < 0:
                    raise self._broken("it sent more than its content-length")
            await self._in_time(self._send({"type": "http.response.body", "body": part, "more_body": True}))
        if self._is_abandoned():
            return
        report = await self._report()
        if report.answer.failure is not None:
            raise self._broken(report.answer.error)
        if left:
            raise self._broken(f"it sent {left} bytes less than its content-length")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _is_abandoned(self) -> bool:
        return self._response.is_abandoned

    async def _in_time(self, sending: Awaitable[None]) -> None:
        """A client that reads nothing is disconnected."""
        try:
            async with asyncio.timeout(streaming.STALL_S):
                await sending
        except TimeoutError:
            raise ClientDisconnected from None

    async def _report(self) -> CallReport:
        try:
            return await self._call
        except errors.Overloaded:
            raise HttpError(503, "overloaded", "too many calls wait; try again in a moment", _RETRY) from None
        except errors.NotFound:
            raise requests.unknown_function() from None

    def _failure(self, report: CallReport) -> HttpError | errors.NotFound:
        """The answer if there is no response: without details, which are nobody's business but the
        author's."""
        failure = report.answer.failure
        if failure is CallFailure.GONE:
            return requests.unknown_function()
        if failure is None:
            failure, error = CallFailure.RESULT, "it ended without a response"
        else:
            error = report.answer.error
        self._log("web_function.failed", failure, error)
        status, code, text = _STATUSES.get(failure, (500, "internal", "the call failed"))
        headers = _RETRY if failure is CallFailure.NO_ROOM else ()
        return HttpError(status, code, text, headers)

    def _broken(self, error: str) -> errors.Unavailable:
        """The response has begun; the dispatcher can only break it off."""
        self._log("web_function.broken", CallFailure.RESULT, error)
        return errors.Unavailable("the function did not complete its response")

    def _log(self, event: str, failure: CallFailure, error: str) -> None:
        log.warning(
            event, function=self._key, failure=failure.value, error=error.partition("\n")[0][:_MAX_LOGGED]
        )


class _ResponseWatch:
    """Abandons a response that must not go on, for a `reason`: its client has left, its token is no longer
    valid, or the server stops while it is being streamed. No task is needed for short ones."""

    def __init__(self, scope: Scope, response: ResponseStream[WebResponseHead]) -> None:
        self.reason: Exception | None = None
        self._scope = scope
        self._response = response
        self._connection: HttpConnection = scope["state"]["connection"]
        self._connection.leave_at_eof()
        self._connection.closed.add_done_callback(self._note_left)
        self._timer = asyncio.get_running_loop().call_later(_SHORT_S, self._watch)
        self._watching: asyncio.Task[None] | None = None

    def close(self) -> None:
        self._connection.closed.remove_done_callback(self._note_left)
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def _note_left(self, _: asyncio.Future[None]) -> None:
        self._abandon(ClientDisconnected())

    def _abandon(self, reason: Exception) -> None:
        self.reason = self.reason or reason
        self._response.abandon()

    def _watch(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        try:
            await tasks.race(self._until_stopped(), streaming.until_refused(self._scope))
        except errors.SkerryError as error:
            self._abandon(error)

    async def _until_stopped(self) -> NoReturn:
        await (self._scope["state"].get("stopping") or asyncio.Event()).wait()
        if self._response.has_begun:  # else it may still be answered in time
            raise errors.Unavailable("the server is stopping; try again")
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody ends it")


async def _leave(call: asyncio.Future[CallReport], response: ResponseStream[WebResponseHead]) -> None:
    """Nobody waits for the call any more, if it is not over."""
    if not call.done():
        response.abandon()
        await asyncio.wait([call], timeout=_LEAVE_S)
    await tasks.cancel_and_wait([call])
