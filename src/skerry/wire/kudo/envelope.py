"""What the REST routes of this room share: pages, entity tags, retries, the envelope if it is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from skerry.kit import ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.transport.http import responses
from skerry.transport.http.endpoints import RequestContext, Response

T = TypeVar("T")

ENVELOPE = "application/vnd.kudo.envelope+json"
MAX_PAGE = 1000
IF_MATCH = "If-Match"
RETRY_HEADER = {"Idempotency-Key": "Makes it safe to send this again for a day: what was made is made once"}
MATCH_HEADER = {IF_MATCH: "The `ETag` that was read: if it has changed since, nothing is done (412)"}
# A spec of the largest size, each character of it escaped.
MAX_SPEC_BODY = 2 * 1024 * 1024

_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*')

Limit = Annotated[int, Meta(ge=0, le=MAX_PAGE, description=f"0: as many as there can be, {MAX_PAGE}")]
Offset = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Cursor = Annotated[str, Meta(description="Of the page before; unlike an offset it neither skips nor repeats")]


class ListMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a list: how many there are in all, and where the next page begins."""

    count: int | None = None
    cursor: str | None = None


class Envelope(msgspec.Struct, Generic[T], frozen=True):
    """What Kudo's own program wraps its answers in."""

    data: T
    metadata: ListMetadata


class Envelopes(msgspec.Struct, Generic[T], frozen=True):
    """A list in the same."""

    data: tuple[T, ...]
    metadata: ListMetadata


class EnvelopedProblem(msgspec.Struct, frozen=True):
    """An error in the same: there is no data, and the rest says why."""

    metadata: responses.Problem
    data: None = None


def document_response(
    call: RequestContext, document: Any, *, status: int | None = None, **headers: str
) -> Response:
    """An answer with one object."""
    return _reply(call, document, lambda: Envelope(document, ListMetadata()), status, headers)


def page_response(call: RequestContext, listed: Any, items: Any) -> Response:
    """An answer with a list: `listed` has its `count` and `cursor`, and `items` in it."""
    metadata = ListMetadata(listed.count, listed.cursor)
    headers = {"X_Total_Count": str(listed.count)}
    return _reply(call, listed, lambda: Envelopes(items, metadata), None, headers)


def _reply(
    call: RequestContext, plain: Any, wrapped: Callable[[], Any], status: int | None, headers: dict[str, str]
) -> Response:
    sent = tuple((name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items())
    if responses.accepts(call.headers, ENVELOPE):
        return Response(wrapped(), status, (*sent, (b"vary", b"accept")), ENVELOPE)
    return Response(plain, status, (*sent, (b"vary", b"accept")), responses.JSON)


def page_size(limit: int) -> int:
    return limit or MAX_PAGE


def name_seed(call: RequestContext, id: str, clock: Clock) -> str:
    """What decides the name of something that is made without one: a repeat of the request gets the same."""
    key = call.idempotency_key
    return id or (f"{call.caller.name} {key}" if key else ulid.new_id(clock.now()))


def etag(revision: int) -> str:
    return f'"{revision}"'


def check_if_match(call: RequestContext, revision: Callable[[], int]) -> int | None:
    """The revision that a change is to be made of, None if any; `FailedPrecondition` if it is not the present
    one."""
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
    # A weak tag never matches here: it may stand for something that only looks the same.
    if str(current) not in {tag[2] for tag in tags if tag is not None and not tag[1]}:
        raise errors.FailedPrecondition("it has changed since you read it; read it again, then decide anew")
    return current
