"""`/function/{name}/logs`: what the workers of a function have printed, as `/instance/{id}/logs` tells it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.node.workers.function_logs import FunctionLogLine
from skerry.transport.http.endpoints import RequestContext, StreamResponse, endpoint
from skerry.transport.http.streaming import StreamFormat
from skerry.wire.serverledge import functions
from skerry.wire.serverledge.context import ServerledgeContext
from skerry.wire.serverledge.error_texts import TEXT, ErrorDocument
from skerry.wire.serverledge.functions import NamePath

_MAX_TAIL = 1_000_000


class FunctionLogsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which output."""

    follow: Annotated[bool, Meta(description="Go on with what is printed from now on")] = False
    tail: (
        Annotated[int, Meta(ge=0, le=_MAX_TAIL, description="Only that many lines of what is there")] | None
    ) = None


@endpoint(
    "GET",
    "/function/{name}/logs",
    summary="What a function printed",
    media="text/plain",
    raises=(errors.Invalid, errors.Unavailable),
    problem=ErrorDocument,
    text_statuses={404: "`Unknown function.`", 429: "Too many follow output; no text."},
    streams=True,
)
async def logs(
    context: ServerledgeContext, call: RequestContext, path: NamePath, query: FunctionLogsQuery
) -> StreamResponse:
    """What all its workers wrote, both streams, in the order of time; calls that returned it are here too.

    Where output is no longer kept, a line of its own says so. With `follow` it goes on until the function is
    deleted; an answer that breaks off is not complete.
    """
    function = functions.require_function(context, path.name)
    async with AsyncExitStack() as undo:
        undo.enter_context(context.streams.take())
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
