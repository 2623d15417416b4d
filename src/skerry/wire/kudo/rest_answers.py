"""What the REST routes of this room share: pages, entity tags, retries, the envelope if it is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from skerry.model import errors
from skerry.wire.http import answers
from skerry.wire.http.endpoints import Call, Reply

T = TypeVar("T")

ENVELOPE = "application/vnd.kudo.envelope+json"
MAX_PAGE = 1000
IDEMPOTENCY_KEY = "Idempotency-Key"
IF_MATCH = "If-Match"
RETRY_HEADER = {IDEMPOTENCY_KEY: "Makes it safe to send this again for a day: what was made is made once"}
MATCH_HEADER = {IF_MATCH: "The `ETag` that was read: if it has changed since, nothing is done (412)"}
# A spec of the largest size, each character of it escaped.
MAX_SPEC_BODY = 2 * 1024 * 1024

_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*')

Limit = Annotated[int, Meta(ge=0, le=MAX_PAGE, description=f"0: as many as there can be, {MAX_PAGE}")]
Offset = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Cursor = Annotated[str, Meta(description="Of the page before; unlike an offset it neither skips nor repeats")]


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a list: how many there are in all, and where the next page begins."""

    count: int | None = None
    cursor: str | None = None


class Envelope(msgspec.Struct, Generic[T], frozen=True):
    """What Kudo's own program wraps its answers in."""

    data: T
    metadata: Metadata


class Envelopes(msgspec.Struct, Generic[T], frozen=True):
    """A list in the same."""

    data: tuple[T, ...]
    metadata: Metadata


def one(call: Call, document: Any, *, status: int | None = None, **headers: str) -> Reply:
    """An answer with one object."""
    return _reply(call, document, lambda: Envelope(document, Metadata()), status, headers)


def page(call: Call, listed: Any, items: Any) -> Reply:
    """An answer with a list: `listed` has its `count` and `cursor`, and `items` in it."""
    metadata = Metadata(listed.count, listed.cursor)
    headers = {"X_Total_Count": str(listed.count)}
    return _reply(call, listed, lambda: Envelopes(items, metadata), None, headers)


def _reply(
    call: Call, plain: Any, wrapped: Callable[[], Any], status: int | None, headers: dict[str, str]
) -> Reply:
    sent = tuple((name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items())
    if _wants_envelope(call):
        return Reply(wrapped(), status, (*sent, (b"vary", b"accept")), ENVELOPE)
    return Reply(plain, status, (*sent, (b"vary", b"accept")), answers.JSON)


def _wants_envelope(call: Call) -> bool:
    accepted = call.headers.get(b"accept", b"").decode("latin-1").lower()
    return any(media.partition(";")[0].strip() == ENVELOPE for media in accepted.split(","))


def page_size(limit: int) -> int:
    return limit or MAX_PAGE


def idempotency_key(call: Call) -> str | None:
    given = call.headers.get(IDEMPOTENCY_KEY.lower().encode())
    return None if given is None else given.decode("latin-1")


def etag(revision: int) -> str:
    return f'"{revision}"'


def matched(call: Call, revision: Callable[[], int]) -> int | None:
    """The revision that a change is to be made of, None if any; `Refused` if it is not the present one."""
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
        raise errors.Refused("it has changed since you read it; read it again, then decide anew")
    return current
