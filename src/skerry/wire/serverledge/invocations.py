"""`/invoke/` and `/poll/`: calls of functions, answered at once or later.

Only translation. A call that failed is a 500 whose body is the report all the same: a client that looks at
the status alone sees what it always saw, and one that reads finds the cause, the output and the traceback. A
call that has not ended polls as 404, with where it is: clients poll until 200.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallState
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire.serverledge import documents, error_texts
from skerry.wire.serverledge.context import ServerledgeContext
from skerry.wire.serverledge.documents import AcceptedCallDocument, InvokeBody, ReportDocument
from skerry.wire.serverledge.error_texts import ErrorDocument, FixedTextError
from skerry.wire.serverledge.node_headers import ExtraHeaders

INVOKE: Final = "/invoke/"
POLL: Final = "/poll/"

_RETRY: Final = (b"retry-after", b"1")
_BANDIT: Final = b"serverledge-mab-request-id"  # a load balancer's, which wants it back
_WAIT: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m)?")
_UNITS_S: Final = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0}
_MOST_WAIT_S: Final = 60.0
_PLAIN: Final = re.compile(rb"[\x20-\x7e]{1,256}")


class FunctionPath(msgspec.Struct, frozen=True):
    function: Annotated[
        str, Meta(min_length=1, description="Its name; all that follows in the path is of it")
    ]


class RequestPath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, description="The `ReqId` of an async call")]


@endpoint(
    "POST",
    "/invoke/{function}",
    summary="Call a function",
    raises=(errors.Invalid, errors.TooLarge, errors.Unavailable),
    problem=ErrorDocument,
    extra_statuses={
        500: "The call failed; the report tells why.",
        429: "No worker came free in its time; the report tells how long it waited.",
    },
    text_statuses={
        404: "`Function unknown.`",
        429: "Too many calls wait. `Retry-After` says when to try again.",
    },
    alternatives=(AcceptedCallDocument,),
    is_quiet=True,
    streams=True,  # a call has a time of its own
)
async def invoke(
    context: ServerledgeContext, call: RequestContext, path: FunctionPath, body: InvokeBody
) -> ReportDocument | Response:
    """With its report, or with `Async` at once with a `ReqId` for `/poll/`.

    Names of fields are read in any case, unknown ones are passed over, an empty body is a call without
    parameters, and the Content-Type does not matter. Numbers in `Params` reach the function as they are
    written. With `?pretty` the answer is indented.
    """
    request = body.to_call_request(path.function)
    if body.is_async:
        if context.functions.get(request.function) is None:
            raise FixedTextError(404, error_texts.FUNCTION_UNKNOWN)
        return Response(
            AcceptedCallDocument(await context.asynchronous.accept(request)), headers=_headers(context, call)
        )
    try:
        report = await context.invoker.invoke(request)
    except errors.NotFound:
        raise FixedTextError(404, error_texts.FUNCTION_UNKNOWN) from None
    return _answer(context, call, report)


def _answer(context: ServerledgeContext, call: RequestContext, report: CallReport) -> Response:
    failure = report.answer.failure
    if failure is CallFailure.GONE:
        raise FixedTextError(404, error_texts.FUNCTION_UNKNOWN)
    headers, status = _headers(context, call), 200
    if failure is not None:
        status = 500
        if failure is CallFailure.NO_ROOM or report.timed_out_in_queue:
            status, headers = 429, (*headers, _RETRY)
    return Response(documents.report_document(report), status, headers)


def _headers(context: ServerledgeContext, call: RequestContext) -> ExtraHeaders:
    headers = context.standing.headers()
    bandit = call.headers.get(_BANDIT)
    return headers if bandit is None or not _PLAIN.fullmatch(bandit) else (*headers, (_BANDIT, bandit))


class PollQuery(msgspec.Struct, frozen=True):
    """How long to wait for the end."""

    wait: Annotated[
        str, Meta(description="Answer when the call has ended, or after this: `10s`, `500ms`; 60 s at most")
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
    summary="The result of an async call",
    raises=(errors.Invalid, errors.Unavailable),
    problem=ErrorDocument,
    extra_statuses={
        404: "There is no result: `State` is `queued` or `running`, with `Retry-After`, or `expired` or "
        "`unknown`."
    },
    is_quiet=True,
    streams=True,  # whoever polls says how long to wait
)
async def poll(
    context: ServerledgeContext, call: RequestContext, path: RequestPath, query: PollQuery
) -> ReportDocument | Response:
    """200 is the end of the call, with its report: `State` is `done` or `failed`.

    Until then it is 404, from the moment that its id was given out, as it is for what is not known or no
    longer kept; `State` tells them apart. With `wait` the answer comes when the call has ended.
    """
    polled = await context.asynchronous.poll(path.id, wait_s=query.wait_s)
    if polled is None:
        return Response(documents.unfinished(CallState.UNKNOWN, "there is no call of this id"), 404)
    if polled.report is not None:
        return documents.report_document(polled.report, polled.state)
    if polled.state.is_pending:
        return Response(documents.unfinished(polled.state), 404, (_RETRY,))
    kept = f"results are kept for {context.settings.result_ttl_s:g} s, and this one was there longer"
    return Response(documents.unfinished(polled.state, kept), 404)
