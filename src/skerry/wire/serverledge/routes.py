"""All endpoints of Serverledge, and how each is served."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from skerry.model.settings import Settings
from skerry.transport.http.dispatcher import ErrorShape, HttpRoute
from skerry.transport.http.endpoints import Endpoint
from skerry.transport.http.runner import build_route
from skerry.wire.serverledge import error_texts, functions, invocations, logs
from skerry.wire.serverledge.context import ServerledgeContext
from skerry.wire.serverledge.dialect import DIALECT
from skerry.wire.serverledge.direct_invocations import DirectInvocations

# Matched by the prefix of their path, because a name may hold slashes (and is then not that of a function).
PREFIX_ENDPOINTS: dict[str, Endpoint] = {
    invocations.INVOKE: invocations.invoke,
    invocations.POLL: invocations.poll,
}
ROUTED_ENDPOINTS: tuple[Endpoint, ...] = (
    functions.create,
    functions.update,
    functions.delete,
    functions.prewarm,
    functions.status,
    functions.neighbours,
    functions.calls,
    functions.list_functions,
    functions.list_by_the_document,
    functions.show,
    logs.logs,
)
ENDPOINTS: tuple[Endpoint, ...] = (*PREFIX_ENDPOINTS.values(), *ROUTED_ENDPOINTS)
# Routes of the program that are not served here: 404, in the shape of the contract.
UNSERVED: dict[str, ErrorShape] = {"/workflow": error_texts.error_response}

# Of a body with code, beside the code in base64: mostly the environment.
_AROUND_CODE = 2 * 1024 * 1024


def build_prefix_routes(context: ServerledgeContext | None, settings: Settings) -> dict[str, list[HttpRoute]]:
    return {
        prefix: [_route(declared, context, settings, prefix)] for prefix, declared in PREFIX_ENDPOINTS.items()
    }


def build_routes(context: ServerledgeContext | None, settings: Settings) -> Iterator[HttpRoute]:
    for declared in ROUTED_ENDPOINTS:
        yield _route(declared, context, settings)


def _route(
    declared: Endpoint, context: ServerledgeContext | None, settings: Settings, prefix: str = ""
) -> HttpRoute:
    most = _max_body_bytes(declared, settings)
    route = build_route(declared, DIALECT, context, settings.http, max_body_bytes=most, prefix=prefix)
    if declared is invocations.invoke and context is not None:
        return replace(route, direct=DirectInvocations(context))
    return route


def _max_body_bytes(declared: Endpoint, settings: Settings) -> int:
    if declared is invocations.invoke:
        return settings.functions.max_params_bytes
    if declared is functions.create or declared is functions.update:
        return settings.functions.max_code_bytes * 4 // 3 + _AROUND_CODE
    return declared.max_body_bytes
