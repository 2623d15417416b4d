"""Every endpoint of this room, and how each is served."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.model.settings import Settings
from skerry.wire import access
from skerry.wire.http.endpoints import Endpoint
from skerry.wire.http.front import Target
from skerry.wire.serverledge import calls, functions, logs, refusals
from skerry.wire.serverledge.context import Serverledge
from skerry.wire.serverledge.serving import Spoken

# Found by the beginning of their path alone, as a name may hold slashes (and is then none of a function).
BARE: dict[str, Endpoint] = {calls.INVOKE: calls.invoke, calls.POLL: calls.poll}
BEHIND: tuple[Endpoint, ...] = (
    functions.create,
    functions.update,
    functions.delete,
    functions.prewarm,
    functions.status,
    functions.neighbours,
    functions.list_functions,
    functions.list_by_the_document,
    functions.show,
    logs.logs,
)
ENDPOINTS: tuple[Endpoint, ...] = (*BARE.values(), *BEHIND)

# Of a body with code, besides the code in base64: mostly the environment.
_AROUND_CODE = 2 * 1024 * 1024


def bare(room: Serverledge | None, settings: Settings) -> dict[str, list[Target]]:
    return {prefix: [_target(declared, room, settings, prefix=prefix)] for prefix, declared in BARE.items()}


def behind(room: Serverledge | None, settings: Settings) -> Iterator[Target]:
    for declared in BEHIND:
        yield _target(declared, room, settings)


def _target(declared: Endpoint, room: Serverledge | None, settings: Settings, *, prefix: str = "") -> Target:
    return Target(
        method=declared.method,
        template=declared.path,
        app=Spoken(declared, room, prefix=prefix),
        row=access.HTTP[declared.name],
        max_body_bytes=_max_body_bytes(declared, settings),
        timeout_s=None if declared.streams else settings.http.request_timeout_s,
        is_quiet=declared.is_quiet,
        told=refusals.told,
    )


def _max_body_bytes(declared: Endpoint, settings: Settings) -> int:
    if declared is calls.invoke:
        return settings.functions.max_params_bytes
    if declared is functions.create or declared is functions.update:
        return settings.functions.max_code_bytes * 4 // 3 + _AROUND_CODE
    return declared.max_body_bytes
