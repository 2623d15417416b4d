"""Responses of Kudo's REST routes: plain, or in an envelope if the client accepts that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from skerry.transport.http import responses
from skerry.transport.http.endpoints import RequestContext, Response

T = TypeVar("T")

ENVELOPE = "application/vnd.kudo.envelope+json"


class ListMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a list: the total number, and the cursor of the next page."""

    count: int | None = None
    cursor: str | None = None


class Envelope(msgspec.Struct, Generic[T], frozen=True):
    """The envelope of Kudo's own program."""

    data: T
    metadata: ListMetadata


class Envelopes(msgspec.Struct, Generic[T], frozen=True):
    """A list in the envelope."""

    data: tuple[T, ...]
    metadata: ListMetadata


class EnvelopedProblem(msgspec.Struct, frozen=True):
    """An error in the envelope: without data, with the fields of the problem."""

    metadata: responses.Problem
    data: None = None


def document_response(
    call: RequestContext, document: Any, *, status: int | None = None, **headers: str
) -> Response:
    """A response with one object."""
    return _reply(call, document, lambda: Envelope(document, ListMetadata()), status, headers)


def page_response(call: RequestContext, listed: Any, items: Any) -> Response:
    """A response with a list: `listed` has its `count` and `cursor`, and contains `items`."""
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
