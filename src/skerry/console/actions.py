"""Actions of pages: what a form sends, and what the browser is answered.

An action calls what the API's endpoint calls, as the caller of the session. The answer has no page: the
notice is shown where the user is, and what has changed arrives by the stream of changes.
"""

from __future__ import annotations

import shlex

import msgspec

from skerry.console.hub import Topic
from skerry.console.rendering import SECURITY_HEADERS
from skerry.kit import json_codec
from skerry.model import ids
from skerry.transport.http.endpoints import Response


class ActionForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a form without fields sends. The namespace of the object is in the query, where it is confined to
    those of the caller before the action runs."""


def done(notice: str, *, leave_to: str = "", reloads: Topic | None = None) -> Response:
    """The answer of an action that was done; with `leave_to`, the page is left for another. With
    `reloads`, it loads what it shows of that topic again: its stream says nothing of what has no stored
    record."""
    events: dict[str, str | None] = {"notice": notice}
    if reloads is not None:
        events[f"live:{reloads}"] = None
    headers = [(b"hx-trigger", json_codec.encode(events).decode().encode("ascii", "backslashreplace"))]
    if leave_to:
        headers.append((b"hx-redirect", leave_to.encode()))
    return Response(None, status=204, headers=(*headers, *SECURITY_HEADERS))


def cli(*words: str, namespace: str = "") -> str:
    """A line for a shell that does the same."""
    scope = ("--namespace", namespace) if namespace not in ("", ids.DEFAULT_NAMESPACE) else ()
    return shlex.join(["skerry", *words, *scope])
