"""`/invoke/` and `/poll/`: calls of functions, answered at once or later.

Only translation. A call that failed is a 500 whose body is the report all the same: a client that looks at
the status alone sees what it always saw, and one that reads finds the cause, the output and the traceback.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.model.calls import CallState, Failure, Report
from skerry.wire.http.endpoints import Call, Reply, endpoint
from skerry.wire.serverledge import documents, refusals
from skerry.wire.serverledge.context import Serverledge
from skerry.wire.serverledge.documents import Accepted, InvokeBody, ReportDocument
from skerry.wire.serverledge.refusals import Fixed, Message
from skerry.wire.serverledge.standing import Headers

INVOKE: Final = "/invoke/"
POLL: Final = "/poll/"

# The status of a report by its failure; any other failure is the function's own: 500.
_STATUS: Final = {None: 200, Failure.NO_ROOM: 429}
_RETRY: Final = (b"retry-after", b"1")
_BANDIT: Final = b"serverledge-mab-request-id"  # a load balancer's, which wants it back
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
    problem=Message,
    also={
        500: "The call failed; the report tells why.",
        429: "No worker came free in its time; the report tells how long it waited.",
    },
    texts={404: "`Function unknown.`", 429: "Too many calls wait. `Retry-After` says when to try again."},
    alternatives=(Accepted,),
    is_quiet=True,
    streams=True,  # a call has a time of its own
)
async def invoke(
    room: Serverledge, call: Call, path: FunctionPath, body: InvokeBody
) -> ReportDocument | Reply:
    """With its report, or with `Async` at once with a `ReqId` for `/poll/`.

    Names of fields are read in any case, unknown ones are passed over, an empty body is a call without
    parameters, and the Content-Type does not matter. Numbers in `Params` reach the function as they are
    written. With `?pretty` the answer is indented.
    """
    ask = body.ask(path.function)
    if body.is_async:
        if room.functions.get(ask.function) is None:
            raise Fixed(404, refusals.FUNCTION_UNKNOWN)
        return Reply(Accepted(await room.asynchronous.accept(ask)), headers=_headers(room, call))
    try:
        report = await room.invoker.invoke(ask)
    except errors.NotFound:
        raise Fixed(404, refusals.FUNCTION_UNKNOWN) from None
    return _answer(room, call, report)


def _answer(room: Serverledge, call: Call, report: Report) -> Reply:
    failure = report.answer.failure
    if failure is Failure.GONE:
        raise Fixed(404, refusals.FUNCTION_UNKNOWN)
    status = _STATUS.get(failure, 500)
    headers = _headers(room, call)
    return Reply(documents.report_document(report), status, (*headers, _RETRY) if status == 429 else headers)


def _headers(room: Serverledge, call: Call) -> Headers:
    headers = room.standing.headers()
    bandit = call.headers.get(_BANDIT)
    return headers if bandit is None or not _PLAIN.fullmatch(bandit) else (*headers, (_BANDIT, bandit))


@endpoint(
    "GET",
    "/poll/{id}",
    summary="The result of an async call",
    raises=(errors.Unavailable,),
    problem=Message,
    also={404: "`expired`: it was there, and is no longer kept."},
    texts={404: "Unknown; no text."},
    is_quiet=True,
)
async def poll(room: Serverledge, call: Call, path: RequestPath) -> ReportDocument | Reply:
    """`State` tells where the call is, from the moment that its id was given out.

    `queued` and `running` have no result yet, so `Success` is false; ask again. `done` and `failed` are the
    end, with the report of that call. What is neither known nor kept any longer is 404.
    """
    polled = await room.asynchronous.poll(path.id)
    if polled is None:
        raise Fixed(404)
    if polled.state is CallState.EXPIRED:
        kept = f"results are kept for {room.settings.result_ttl_s:g} s, and this one was there longer"
        return Reply(documents.unfinished(polled.state, kept), 404)
    if polled.report is None:
        return documents.unfinished(polled.state)
    return documents.report_document(polled.report, polled.state)
