"""`/console/link`: one-time links to the web console, which sign a browser in as the caller."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.wire.own.context import OwnContext


class ConsoleLinkInfo(msgspec.Struct, frozen=True):
    """A link that signs a browser in, once."""

    path: Annotated[
        str,
        Meta(
            description="Below the address of any server of this cloud. The code is behind `#`, which "
            "browsers do not send: it is in no log of a server or proxy"
        ),
    ]
    expires_at: Annotated[float, Meta(description="Seconds since the epoch")]


@endpoint(
    "POST",
    "/console/link",
    summary="Create a link to the web console",
    status=201,
    raises=(errors.TooLarge, errors.Unavailable),
)
async def create(own: OwnContext, call: RequestContext) -> ConsoleLinkInfo:
    """Whoever opens it first has a session with the role and the namespaces of the caller, until the token or
    certificate of the caller is revoked or expires, and for 12 hours at most."""
    link = await own.plane.identity.console_sessions.create_link(call.caller)
    return ConsoleLinkInfo(f"/console/login#{link.code}", link.expires_at)
