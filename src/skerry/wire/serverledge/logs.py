"""`/function/{name}/logs`: the output of a function's workers, in the form of `/instance/{id}/logs`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Annotated

from msgspec import Meta

from skerry.model import errors
from skerry.node.workers.function_logs import FunctionLogLine
from skerry.transport.http.endpoints import RequestContext, StreamResponse, endpoint
from skerry.transport.http.streaming import StreamFormat
from skerry.wire.serverledge import functions
from skerry.wire.serverledge.context import ServerledgeContext
from skerry.wire.serverledge.error_texts import TEXT, ErrorDocument
from skerry.wire.serverledge.functions import NamePath
from skerry.wire.serverledge.namespaces import FunctionQuery

_MAX_TAIL = 1_000_000


class FunctionLogsQuery(FunctionQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which output."""

    follow: Annotated[bool, Meta(description="Follow the output")] = False
    tail: Annotated[int, Meta(ge=0, le=_MAX_TAIL, description="Only the last so many lines")] | None = None


@endpoint(
    "GET",
    "/function/{name}/logs",
    summary="Read the logs of a function",
    media="text/plain",
    raises=(errors.Invalid, errors.Unavailable),
    problem=ErrorDocument,
    text_statuses={404: "`Unknown function.`", 429: "Too many follow output; no text."},
    streams=True,
)
async def logs(
    context: ServerledgeContext, call: RequestContext, path: NamePath, query: FunctionLogsQuery
) -> StreamResponse:
    """The output of all its workers, both streams, in the order of time, also of calls that returned it.

    Where output is no longer stored, a line of its own says so. With `follow` the stream continues until the
    function is deleted; a response that is cut off is not complete.
    """
    function = functions.require_function(context, query.key(path.name))
    async with AsyncExitStack() as undo:
        undo.enter_context(context.streams.take(call.caller.tenant))
        lines = context.logs.logs(function.name, lines=query.tail, follow=query.follow)
        return StreamResponse(_written(lines), StreamFormat(TEXT), undo.pop_all())


async def _written(lines: AsyncGenerator[FunctionLogLine, None]) -> AsyncGenerator[bytes, None]:
    is_within_line = False
    async with aclosing(lines):
        async for line in lines:
            text = line.text if line.is_partial else line.text + "\n"
            if line.lost:
                gap = f"[skerry: output is missing here: {line.stream} {line.lost}]\n"
                text = ("\n" if is_within_line else "") + gap + text
            is_within_line = line.is_partial
            yield text.encode("utf-8", "replace")
