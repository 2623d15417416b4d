"""What REST routes of several dialects share: pages, entity tags and idempotent requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta

from skerry.kit import ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.transport.http.endpoints import RequestContext, Response

MAX_PAGE = 1000
IF_MATCH = "If-Match"
RETRY_HEADER = {"Idempotency-Key": "The request can be repeated for a day: the object is created once"}
MATCH_HEADER = {IF_MATCH: "The `ETag` that was read: if the object has changed since, 412"}
# Errors of creating an object with a spec, by PUT with an `Idempotency-Key`.
CREATE_ERRORS = (
    errors.Invalid,
    errors.AlreadyExists,
    errors.Unprocessable,
    errors.Expired,
    errors.TooLarge,
    errors.Unavailable,
)
# A spec of the maximum size, with each character escaped.
MAX_SPEC_BODY = 2 * 1024 * 1024

_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*')

Limit = Annotated[int, Meta(ge=0, le=MAX_PAGE, description=f"0: as many as there can be, {MAX_PAGE}")]
Offset = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Cursor = Annotated[
    str, Meta(description="Of the page before; unlike an offset it neither skips nor repeats objects")
]


def page_size(limit: int) -> int:
    return limit or MAX_PAGE


def name_seed(call: RequestContext, id: str, clock: Clock) -> str:
    """The seed of a generated name: a repeated request gets the same name."""
    key = call.idempotency_key
    return id or (f"{call.caller.name} {key}" if key else ulid.new_id(clock.now()))


def respond(document: Any, status: int | None = None, **headers: str) -> Response:
    """A response with headers; without a status, that of its route."""
    return Response(
        document, status, tuple((name.encode(), value.encode()) for name, value in headers.items())
    )


def etag(revision: int) -> str:
    return f'"{revision}"'


def check_if_match(call: RequestContext, revision: Callable[[], int]) -> int | None:
    """The revision that a change expects, None if any; `FailedPrecondition` if it is not the present one."""
    given = call.headers.get(IF_MATCH.lower().encode())
    if given is None:
        return None
    text = given.decode("latin-1").strip()
    current = revision()
    if text == "*":
        return None
    tags = [_TAG.fullmatch(part) for part in text.split(",")]
    if not all(tags):
        raise errors.Invalid('If-Match is `*` or tags such as `"812"`, with commas between', field=IF_MATCH)
    # A weak tag never matches: it does not identify one revision.
    if str(current) not in {tag[2] for tag in tags if tag is not None and not tag[1]}:
        raise errors.FailedPrecondition("it has changed since you read it; read it again, then decide anew")
    return current
