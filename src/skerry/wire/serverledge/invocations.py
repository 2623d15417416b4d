"""`/invoke/` and `/poll/`: synchronous and async calls of functions.

Translation only. A failed call is a 500 whose body is the report: a client that checks only the status gets
what the contract says, and one that reads it gets the error, the output and the traceback. A pending call
polls as 404, with its state: clients poll until 200.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from skerry.kit import traces
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.calls import CallFailure, CallReport, CallState
from skerry.model.function_names import plain_name
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire.serverledge import documents, error_texts
from skerry.wire.serverledge.context import ServerledgeContext
from skerry.wire.serverledge.documents import AcceptedCallDocument, InvokeBody, ReportDocument
from skerry.wire.serverledge.error_texts import ErrorDocument, FixedTextError
from skerry.wire.serverledge.namespaces import FunctionQuery
from skerry.wire.serverledge.node_headers import ExtraHeaders

INVOKE: Final = "/invoke/"
POLL: Final = "/poll/"

_RETRY: Final = (b"retry-after", b"1")
_BANDIT: Final = b"serverledge-mab-request-id"  # of a load balancer, which expects it in the response
_WAIT: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m)?")
_UNITS_S: Final = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0}
_MOST_WAIT_S: Final = 60.0
_PLAIN: Final = re.compile(rb"[\x20-\x7e]{1,256}")


class FunctionPath(msgspec.Struct, frozen=True):
    function: Annotated[str, Meta(min_length=1, description="Its name; it may hold slashes")]


class RequestPath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, description="The `ReqId` of an async call")]


@endpoint(
    "POST",
    "/invoke/{function}",
    summary="Call a function",
    raises=(errors.Invalid, errors.TooLarge, errors.Unavailable),
    problem=ErrorDocument,
    extra_statuses={
        500: "The call failed; the report has the error.",
        429: "No worker was free in time; the report has the queueing time.",
    },
    text_statuses={
        404: "`Function unknown.`",
        429: "Too many calls wait. `Retry-After` says when to try again.",
    },
    alternatives=(AcceptedCallDocument,),
    is_quiet=True,
    streams=True,  # a call has a time limit of its own
)
async def invoke(
    context: ServerledgeContext,
    call: RequestContext,
    path: FunctionPath,
    query: FunctionQuery,
    body: InvokeBody,
) -> ReportDocument | Response:
    """The response is the report, or with `Async` a `ReqId` for `/poll/`.

    Names of fields are accepted in any case, unknown ones are ignored, an empty body is a call without
    parameters, and the Content-Type does not matter. Numbers in `Params` reach the function as they are
    written. With `?pretty` the response is indented.
    """
    request = body.to_call_request(query.key(path.function))
    if traces.recorder is not None:
        request = msgspec.structs.replace(request, traceparent=call.traceparent)
    if body.is_async:
        if context.functions.get(request.function) is None:
            raise FixedTextError(404, error_texts.FUNCTION_UNKNOWN)
        id = await context.asynchronous.accept(request)
        return Response(
            AcceptedCallDocument(plain_name(id)), headers=_headers(context, call.caller, call.headers)
        )
    try:
        report = await context.invoker.invoke(request)
    except errors.NotFound:
        raise FixedTextError(404, error_texts.FUNCTION_UNKNOWN) from None
    status, headers = response_head(context, call.caller, call.headers, report)
    return Response(documents.report_document(report), status, headers)


def response_head(
    context: ServerledgeContext, caller: Caller, headers: Mapping[bytes, bytes], report: CallReport
) -> tuple[int, ExtraHeaders]:
    """The status and headers of the response to a call with these headers; raises the error of a function
    that is gone."""
    failure = report.answer.failure
    more = _headers(context, caller, headers)
    if failure is None:
        return 200, more
    if failure is CallFailure.GONE:
        raise FixedTextError(404, error_texts.FUNCTION_UNKNOWN)
    if failure is CallFailure.NO_ROOM or report.timed_out_in_queue:
        return 429, (*more, _RETRY)
    return 500, more


def _headers(context: ServerledgeContext, caller: Caller, headers: Mapping[bytes, bytes]) -> ExtraHeaders:
    # The load of the node is of all tenants together.
    more = context.node_headers.headers() if caller.namespaces is None else ()
    bandit = headers.get(_BANDIT)
    return more if bandit is None or not _PLAIN.fullmatch(bandit) else (*more, (_BANDIT, bandit))


class PollQuery(FunctionQuery, frozen=True, kw_only=True):
    """How long to wait for the result."""

    wait: Annotated[
        str,
        Meta(description="Wait until the call has ended, at most this long: `10s`, `500ms`; 60 s at most"),
    ] = ""

    @property
    def wait_s(self) -> float:
        if not self.wait:
            return 0.0
        if (match := _WAIT.fullmatch(self.wait)) is None:
            raise errors.Invalid("query: `wait` must be a time such as `10s` or `500ms`", field="wait")
        return min(float(match[1]) * _UNITS_S[match[2]], _MOST_WAIT_S)


@endpoint(
    "GET",
    "/poll/{id}",
    summary="Poll the result of an async call",
    raises=(errors.Invalid, errors.Unavailable),
    problem=ErrorDocument,
    extra_statuses={
        404: "There is no result: `State` is `queued` or `running`, with `Retry-After`, or `expired` or "
        "`unknown`."
    },
    is_quiet=True,
    streams=True,  # `wait` is its time limit
)
async def poll(
    context: ServerledgeContext, call: RequestContext, path: RequestPath, query: PollQuery
) -> ReportDocument | Response:
    """200 when the call has ended, with its report: `State` is `done` or `failed`.

    Until then it is 404, as for a call that is unknown or no longer stored; `State` distinguishes them. With
    `wait` the response comes when the call has ended.
    """
    polled = await context.asynchronous.poll(query.key(path.id), wait_s=query.wait_s)
    if polled is None:
        return Response(documents.unfinished(CallState.UNKNOWN, "there is no call of this id"), 404)
    if polled.report is not None:
        return documents.report_document(polled.report, polled.state)
    if polled.state.is_pending:
        return Response(documents.unfinished(polled.state), 404, (_RETRY,))
    kept = f"results are kept for {context.settings.result_ttl_s:g} s, and this one was there longer"
    return Response(documents.unfinished(polled.state, kept), 404)
