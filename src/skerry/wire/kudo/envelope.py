"""Answers of the REST routes of this room: as they are, or in the envelope if it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from skerry.transport.http import responses
from skerry.transport.http.endpoints import RequestContext, Response

T = TypeVar("T")

ENVELOPE = "application/vnd.kudo.envelope+json"


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
