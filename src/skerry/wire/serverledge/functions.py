"""`/create`, `/update`, `/delete`, `/prewarm`, `/function` and `/status`: functions as they are registered.

Only translation: what a function must be is `skerry.functions`' to say, and what becomes of its workers, too.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.model.functions import Function
from skerry.wire.http.endpoints import Call, endpoint
from skerry.wire.serverledge import documents, refusals
from skerry.wire.serverledge.context import Serverledge
from skerry.wire.serverledge.documents import (
    FunctionBody,
    FunctionCreated,
    FunctionDeleted,
    FunctionDocument,
    NameBody,
    NeighbourDocument,
    PrewarmBody,
    Prewarmed,
    StatusDocument,
)
from skerry.wire.serverledge.refusals import Fixed, Message

_REGISTER_RAISES = (
    errors.Invalid,
    errors.Unprocessable,
    errors.TooLarge,
    errors.NoRoom,
    errors.Unavailable,
)
_REGISTER_TEXTS = {404: "`Invalid runtime.`", 422: "`Invalid memory limit`: `MemoryMB` is below 1."}


class NamePath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128, description="Its name, in any case")]


@endpoint(
    "POST",
    "/create",
    summary="Register a function",
    raises=_REGISTER_RAISES,
    problem=Message,
    texts={**_REGISTER_TEXTS, 409: "There is one of that name; no text."},
)
async def create(room: Serverledge, call: Call, body: FunctionBody) -> FunctionCreated:
    """It is durable, and has been loaded once, when this answers. 409 if there is one of that name.

    A handler that cannot be loaded is 422, with what was printed and the traceback.
    """
    try:
        return _created(room, await room.functions.create(body.new_function(), actor=call.caller.name))
    except (errors.NotFound, errors.Unprocessable) as error:
        raise _in_its_words(error, body) from None


@endpoint(
    "POST",
    "/update",
    summary="Register a function anew",
    raises=_REGISTER_RAISES,
    problem=Message,
    texts=_REGISTER_TEXTS,
)
async def update(room: Serverledge, call: Call, body: FunctionBody) -> FunctionCreated:
    """The whole function again; if there is none of that name it is made.

    No call that starts after the answer runs the old code; calls that run may end.
    """
    try:
        return _created(room, await room.functions.update(body.new_function(), actor=call.caller.name))
    except (errors.NotFound, errors.Unprocessable) as error:
        raise _in_its_words(error, body) from None


@endpoint(
    "POST",
    "/delete",
    summary="Delete a function",
    raises=(errors.Invalid, errors.Unavailable),
    problem=Message,
    texts={404: "`Unknown function.`"},
)
async def delete(room: Serverledge, call: Call, body: NameBody) -> FunctionDeleted:
    """Calls that run may end; later ones get 404."""
    try:
        function = await room.functions.delete(body.name, actor=call.caller.name)
    except errors.NotFound:
        raise Fixed(404, refusals.UNKNOWN_FUNCTION) from None
    return FunctionDeleted(function.name)


@endpoint(
    "POST",
    "/prewarm",
    summary="Have workers ready",
    raises=(errors.Invalid, errors.Unprocessable, errors.NoRoom, errors.Unavailable),
    problem=Message,
    texts={404: "`Unknown function.`"},
    streams=True,  # fetching an image takes as long as it takes
)
async def prewarm(room: Serverledge, call: Call, body: PrewarmBody) -> Prewarmed:
    """They are kept as long as any idle worker. How many it became may be less than was asked for."""
    if body.instances < 0:
        raise errors.Invalid("body: `Instances` must be 0 or more", field="Instances")
    try:
        made = await room.invoker.prewarm(body.function, body.instances, force=body.force_image_pull)
    except errors.NotFound:
        raise Fixed(404, refusals.UNKNOWN_FUNCTION) from None
    return Prewarmed(made)


@endpoint("GET", "/status", summary="What the node has and holds", problem=Message, is_quiet=True)
async def status(room: Serverledge, call: Call) -> StatusDocument:
    """Memory in MB and cpus in cores, of all workers together; what is available may be had by new calls."""
    return documents.status_document(
        room.invoker.status(), url=room.url, load=room.load(), now=room.clock.now()
    )


@endpoint("GET", "/neighbours", summary="Other nodes that take calls", problem=Message)
async def neighbours(room: Serverledge, call: Call) -> list[NeighbourDocument]:
    """As this node sees them: those that its policy may choose come first, nearest first."""
    return [documents.neighbour_document(seen) for seen in room.invoker.neighbours()]


@endpoint("GET", "/function", summary="List functions", problem=Message)
async def list_functions(room: Serverledge, call: Call) -> list[str]:
    """Their names, in order."""
    return list(room.functions.names())


@endpoint("GET", "/functions", summary="List functions; the same as /function", problem=Message)
async def list_by_the_document(room: Serverledge, call: Call) -> list[str]:
    """As the document spells it."""
    return list(room.functions.names())


@endpoint(
    "GET",
    "/function/{name}",
    summary="Show a function",
    raises=(errors.Invalid,),
    problem=Message,
    texts={404: "`Unknown function.`"},
)
async def show(room: Serverledge, call: Call, path: NamePath) -> FunctionDocument:
    """All of it but its code, and what really runs it."""
    function = known(room, path.name)
    return documents.function_document(function, _runs(room, function), room.settings.call_timeout_s)


def known(room: Serverledge, name: str) -> Function:
    """The function of that name; 404 in the contract's words if there is none."""
    function = room.functions.get(name)
    if function is None:
        raise Fixed(404, refusals.UNKNOWN_FUNCTION)
    return function


def _created(room: Serverledge, function: Function) -> FunctionCreated:
    return FunctionCreated(function.name, _runs(room, function), function.version)


def _runs(room: Serverledge, function: Function) -> str:
    try:
        return room.functions.runs(function)
    except errors.Unavailable as error:
        return f"nothing here: {error.message}"


def _in_its_words(error: errors.SkerryError, body: FunctionBody) -> Exception:
    if isinstance(error, errors.NotFound):
        return Fixed(404, refusals.INVALID_RUNTIME)
    return Fixed(422, refusals.INVALID_MEMORY) if body.memory_mb < 1 else error
