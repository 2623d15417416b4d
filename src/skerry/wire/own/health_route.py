"""`/healthz` as it is served: every HTTP listener has it, those of nodes too, which import nothing else of
`skerry.wire.own.health`."""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.kit import json_codec
from skerry.transport.access import rules
from skerry.transport.http.asgi import Receive, Scope, Send
from skerry.transport.http.dispatcher import HttpRoute
from skerry.transport.http.endpoints import MAX_BODY_BYTES

_METHOD: Final = "GET"
PATH: Final = "/healthz"


class HealthDocument(msgspec.Struct, frozen=True):
    """The process is alive."""

    status: str


ALIVE = HealthDocument("ok")
_BODY = json_codec.encode(ALIVE)
_HEADERS = ((b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode()))


def build_health_route() -> HttpRoute:
    """`/healthz` without the layers of other routes: it is also the baseline of benchmarks."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        await send({"type": "http.response.body", "body": _BODY})

    return HttpRoute(
        method=_METHOD,
        template=PATH,
        app=answer,
        row=rules.HTTP_RULES[f"{_METHOD} {PATH}"],
        max_body_bytes=MAX_BODY_BYTES,
        timeout_s=None,
        is_quiet=True,
    )
