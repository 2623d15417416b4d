"""`/create`, `/update`, `/delete`, `/prewarm`, `/function` and `/status`: functions as they are registered.

Only translation: what a function must be is `skerry.functions`' to say, and what becomes of its workers, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.model.functions import Function
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.serverledge import documents, error_texts
from skerry.wire.serverledge.context import ServerledgeContext
from skerry.wire.serverledge.documents import (
    FunctionBody,
    FunctionCreated,
    FunctionDeleted,
    FunctionDocument,
    NameBody,
    NeighbourDocument,
    PrewarmBody,
    PrewarmResult,
    StatusDocument,
)
from skerry.wire.serverledge.error_texts import ErrorDocument, FixedTextError

_REGISTER_RAISES = (
    errors.Invalid,
    errors.Unprocessable,
    errors.TooLarge,
    errors.ResourcesExhausted,
    errors.Unavailable,
)
_REGISTER_TEXTS = {404: "`Invalid runtime.`", 422: "`Invalid memory limit`: `MemoryMB` is below 1."}


class NamePath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128, description="Its name")]


@endpoint(
    "POST",
    "/create",
    summary="Register a function",
    raises=_REGISTER_RAISES,
    problem=ErrorDocument,
    text_statuses={**_REGISTER_TEXTS, 409: "There is one of that name; no text."},
)
async def create(context: ServerledgeContext, call: RequestContext, body: FunctionBody) -> FunctionCreated:
    """It is durable, its code is on two members if there are two, and it has been loaded once, when this
    answers. 409 if there is one of that name.

    A handler that cannot be loaded is 422, with what was printed and the traceback.
    """
    return await _register(context, call, body, context.functions.create)


@endpoint(
    "POST",
    "/update",
    summary="Register a function anew",
    raises=_REGISTER_RAISES,
    problem=ErrorDocument,
    text_statuses=_REGISTER_TEXTS,
)
async def update(context: ServerledgeContext, call: RequestContext, body: FunctionBody) -> FunctionCreated:
    """The whole function again; if there is none of that name it is made.

    No call that starts after the answer runs the old code; calls that run may end.
    """
    return await _register(context, call, body, context.functions.update)


@endpoint(
    "POST",
    "/delete",
    summary="Delete a function",
    raises=(errors.Invalid, errors.Unavailable),
    problem=ErrorDocument,
    text_statuses={404: "`Unknown function.`"},
)
async def delete(context: ServerledgeContext, call: RequestContext, body: NameBody) -> FunctionDeleted:
    """Calls that run may end; later ones get 404."""
    try:
        function = await context.functions.delete(body.name, actor=call.caller.name)
    except errors.NotFound:
        raise FixedTextError(404, error_texts.UNKNOWN_FUNCTION) from None
    return FunctionDeleted(function.name)


@endpoint(
    "POST",
    "/prewarm",
    summary="Have workers ready",
    raises=(errors.Invalid, errors.Unprocessable, errors.ResourcesExhausted, errors.Unavailable),
    problem=ErrorDocument,
    text_statuses={404: "`Unknown function.`"},
    streams=True,  # fetching an image takes as long as it takes
)
async def prewarm(context: ServerledgeContext, call: RequestContext, body: PrewarmBody) -> PrewarmResult:
    """They are kept as long as any idle worker. How many it became may be less than was asked for."""
    if body.instances < 0:
        raise errors.Invalid("body: `Instances` must be 0 or more", field="Instances")
    try:
        made = await context.invoker.prewarm(body.function, body.instances, force=body.force_image_pull)
    except errors.NotFound:
        raise FixedTextError(404, error_texts.UNKNOWN_FUNCTION) from None
    return PrewarmResult(made)


@endpoint("GET", "/status", summary="What the node has and holds", problem=ErrorDocument, is_quiet=True)
async def status(context: ServerledgeContext, call: RequestContext) -> StatusDocument:
    """Memory in MB and cpus in cores, of all workers together; what is available may be had by new calls."""
    return documents.status_document(
        context.invoker.status(),
        context.functions.replication(),
        url=context.url,
        load=context.load(),
        now=context.clock.now(),
    )


@endpoint("GET", "/neighbours", summary="Other nodes that take calls", problem=ErrorDocument)
async def neighbours(context: ServerledgeContext, call: RequestContext) -> list[NeighbourDocument]:
    """As this node sees them: those that its policy may choose come first, nearest first."""
    return [documents.neighbour_document(seen) for seen in context.invoker.neighbours()]


@endpoint("GET", "/function", summary="List functions", problem=ErrorDocument)
async def list_functions(context: ServerledgeContext, call: RequestContext) -> list[str]:
    """Their names, in order."""
    return list(context.functions.names())


@endpoint("GET", "/functions", summary="List functions; the same as /function", problem=ErrorDocument)
async def list_by_the_document(context: ServerledgeContext, call: RequestContext) -> list[str]:
    """As the document spells it."""
    return list(context.functions.names())


@endpoint(
    "GET",
    "/function/{name}",
    summary="Show a function",
    raises=(errors.Invalid,),
    problem=ErrorDocument,
    text_statuses={404: "`Unknown function.`"},
)
async def show(context: ServerledgeContext, call: RequestContext, path: NamePath) -> FunctionDocument:
    """All of it but its code, and what really runs it."""
    function = require_function(context, path.name)
    return documents.function_document(
        function,
        _runs(context, function),
        context.settings.call_timeout_s,
        context.functions.copies(function),
    )


def require_function(context: ServerledgeContext, name: str) -> Function:
    """The function of that name; 404 in the contract's words if there is none."""
    function = context.functions.get(name)
    if function is None:
        raise FixedTextError(404, error_texts.UNKNOWN_FUNCTION)
    return function


async def _register(
    context: ServerledgeContext,
    call: RequestContext,
    body: FunctionBody,
    register: Callable[..., Awaitable[Function]],
) -> FunctionCreated:
    try:
        function = await register(body.new_function(call.caller), actor=call.caller.name)
    except errors.NotFound:
        raise FixedTextError(404, error_texts.INVALID_RUNTIME) from None
    except errors.Unprocessable:
        if body.memory_mb < 1:
            raise FixedTextError(422, error_texts.INVALID_MEMORY) from None
        raise
    return documents.created_document(function, _runs(context, function), context.functions.copies(function))


def _runs(context: ServerledgeContext, function: Function) -> str:
    try:
        return context.functions.runs(function)
    except errors.Unavailable as error:
        return f"nothing here: {error.message}"
