"""`/create`, `/update`, `/delete`, `/prewarm`, `/function` and `/status`: the registry of functions.

Translation only: `skerry.functions` validates functions and controls their workers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.model.function_names import display_name, namespace_of, plain_name
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.serverledge import documents, error_texts
from skerry.wire.serverledge.context import ServerledgeContext
from skerry.wire.serverledge.documents import (
    CallCountsDocument,
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
from skerry.wire.serverledge.namespaces import FunctionListQuery, FunctionQuery

_REGISTER_RAISES = (
    errors.Invalid,
    errors.Unprocessable,
    errors.TooLarge,
    errors.ResourcesExhausted,
    errors.QuotaExceeded,
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
    text_statuses={**_REGISTER_TEXTS, 409: "A function of that name exists; no text."},
)
async def create(
    context: ServerledgeContext, call: RequestContext, query: FunctionQuery, body: FunctionBody
) -> FunctionCreated:
    """409 if a function of that name exists. When the response is sent the function is durable, its code is
    on two members if there are two, and it was loaded once.

    A handler that cannot be loaded is 422, with its output and the traceback.
    """
    return await _register(context, call, query, body, context.functions.create)


@endpoint(
    "POST",
    "/update",
    summary="Update a function",
    raises=_REGISTER_RAISES,
    problem=ErrorDocument,
    text_statuses=_REGISTER_TEXTS,
)
async def update(
    context: ServerledgeContext, call: RequestContext, query: FunctionQuery, body: FunctionBody
) -> FunctionCreated:
    """The whole function; if there is none of that name it is created.

    No call that starts after the response runs the old code; running calls continue.
    """
    return await _register(context, call, query, body, context.functions.update)


@endpoint(
    "POST",
    "/delete",
    summary="Delete a function",
    raises=(errors.Invalid, errors.Unavailable),
    problem=ErrorDocument,
    text_statuses={404: "`Unknown function.`"},
)
async def delete(
    context: ServerledgeContext, call: RequestContext, query: FunctionQuery, body: NameBody
) -> FunctionDeleted:
    """Running calls continue; later ones get 404."""
    try:
        function = await context.functions.delete(query.key(body.name), actor=call.caller.name)
    except errors.NotFound:
        raise FixedTextError(404, error_texts.UNKNOWN_FUNCTION) from None
    return FunctionDeleted(plain_name(function.name))


@endpoint(
    "POST",
    "/prewarm",
    summary="Prewarm workers",
    raises=(
        errors.Invalid,
        errors.Unprocessable,
        errors.ResourcesExhausted,
        errors.QuotaExceeded,
        errors.Unavailable,
    ),
    problem=ErrorDocument,
    text_statuses={404: "`Unknown function.`"},
    streams=True,  # fetching an image has no time limit
)
async def prewarm(
    context: ServerledgeContext, call: RequestContext, query: FunctionQuery, body: PrewarmBody
) -> PrewarmResult:
    """They are kept as long as any idle worker. Fewer than requested may be started."""
    if body.instances < 0:
        raise errors.Invalid("body: `Instances` must be 0 or more", field="Instances")
    key = query.key(body.function)
    if (function := context.functions.get(key)) is not None:
        context.check_prewarm(function, body.instances)
    try:
        made = await context.invoker.prewarm(key, body.instances, force=body.force_image_pull)
    except errors.NotFound:
        raise FixedTextError(404, error_texts.UNKNOWN_FUNCTION) from None
    return PrewarmResult(made)


@endpoint("GET", "/status", summary="Status of the node", problem=ErrorDocument, is_quiet=True)
async def status(context: ServerledgeContext, call: RequestContext) -> StatusDocument:
    """Memory in MB and cpus in cores, of all workers together; what is available can be used by new calls."""
    return documents.status_document(
        context.invoker.status(),
        context.functions.replication(),
        url=context.url,
        load=context.load(),
        now=context.clock.now(),
    )


@endpoint("GET", "/neighbours", summary="List neighbours", problem=ErrorDocument)
async def neighbours(context: ServerledgeContext, call: RequestContext) -> list[NeighbourDocument]:
    """As known to this node: those that its policy may choose come first, nearest first."""
    return [documents.neighbour_document(seen) for seen in context.invoker.neighbours()]


@endpoint(
    "GET",
    "/function-calls",
    summary="Calls of all functions in the whole cloud",
    problem=ErrorDocument,
    is_quiet=True,
)
async def calls(context: ServerledgeContext, call: RequestContext) -> CallCountsDocument:
    """The counters of all members, added up: the difference of two readings is what happened between them."""
    return documents.call_counts_document(await context.calls.read())


@endpoint("GET", "/function", summary="List functions", problem=ErrorDocument)
async def list_functions(
    context: ServerledgeContext, call: RequestContext, query: FunctionListQuery
) -> list[str]:
    """Their names, in order."""
    return _names(context, query)


@endpoint("GET", "/functions", summary="List functions; the same as /function", problem=ErrorDocument)
async def list_by_the_document(
    context: ServerledgeContext, call: RequestContext, query: FunctionListQuery
) -> list[str]:
    """The path of the document."""
    return _names(context, query)


def _names(context: ServerledgeContext, query: FunctionListQuery) -> list[str]:
    scope, shown = query.scope, plain_name if query.is_of_one else display_name
    return [shown(key) for key in context.functions.names() if scope.admits(namespace_of(key))]


@endpoint(
    "GET",
    "/function/{name}",
    summary="Show a function",
    raises=(errors.Invalid,),
    problem=ErrorDocument,
    text_statuses={404: "`Unknown function.`"},
)
async def show(
    context: ServerledgeContext, call: RequestContext, path: NamePath, query: FunctionQuery
) -> FunctionDocument:
    """All fields but its code, and its actual runtime."""
    function = require_function(context, query.key(path.name))
    return documents.function_document(
        function,
        _runs(context, function),
        context.settings.call_timeout_s,
        context.functions.copies(function),
    )


def require_function(context: ServerledgeContext, key: FunctionName) -> Function:
    """The function of that key; 404 with the contract's text if there is none."""
    function = context.functions.get(key)
    if function is None:
        raise FixedTextError(404, error_texts.UNKNOWN_FUNCTION)
    return function


async def _register(
    context: ServerledgeContext,
    call: RequestContext,
    query: FunctionQuery,
    body: FunctionBody,
    register: Callable[..., Awaitable[Function]],
) -> FunctionCreated:
    try:
        function = await register(
            body.new_function(call.caller, query.key(body.name)), actor=call.caller.name
        )
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
