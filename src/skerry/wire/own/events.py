"""`/events`: the durable event log as server-sent events, resumable and filtered.

A reader that resumes before the oldest stored event gets a `reset` event, and continues with the oldest.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.control.events.log import EventLog, StoredEvent
from skerry.control.events.positions import FROM_THE_START
from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.namespace_scope import NamespaceScope, scope_of
from skerry.transport.access.namespaces import EVERY
from skerry.transport.http import sse
from skerry.transport.http.endpoints import RequestContext, StreamResponse, endpoint
from skerry.wire.namespaces import NamespaceFilter, listed_namespace
from skerry.wire.own.context import OwnContext

_KIND = re.compile(r"[a-z][a-z0-9-]{0,63}(\.[a-z][a-z0-9-]{0,63})?")
_MAX_KINDS = 32


class EventStreamQuery(NamespaceFilter, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which events, and whether to follow."""

    namespace: Annotated[
        str,
        Meta(
            description="Only events of objects in this namespace, or in several with commas between; "
            f"`{EVERY}`, and without it: all that the caller may see"
        ),
    ] = EVERY

    after: Annotated[
        str, Meta(description="Only events after the one with this id; `0` for all that are stored")
    ] = ""
    kind: Annotated[
        str, Meta(description="Nouns (`token`) or whole kinds (`token.created`), separated by commas")
    ] = ""
    follow: Annotated[bool, Meta(description="`false` ends after the stored events")] = True


class StreamResetEvent(msgspec.Struct, frozen=True):
    """Sent instead of events that are no longer stored."""

    reason: str


@endpoint(
    "GET",
    "/events",
    summary="Stream events",
    media=sse.MEDIA,
    raises=(errors.Invalid, errors.Overloaded),
    headers={"Last-Event-ID": "The id of the last event that was read; overrides `after`"},
    streams=True,
)
async def follow(own: OwnContext, call: RequestContext, query: EventStreamQuery) -> StreamResponse:
    """Server-sent events: `id`, `event` (the kind) and `data` (the event as JSON).

    Without an id the stream starts now, or with `follow=false` at the oldest event. Comments keep an idle
    stream open. If events after the id are no longer stored, an event `reset` says so, and the stream
    continues with the oldest one.
    """
    shown = call.headers.get(b"last-event-id")
    after = (query.after if shown is None else shown.decode("latin-1")) or None
    selection = _Selection(
        own.plane.events, _kinds(query.kind), scope_of(listed_namespace(query)), call.caller.scope
    )
    if after is not None:
        selection.stream(after)  # an invalid id is refused before the response begins
    frames = _following(selection, after) if query.follow else _stored(selection, after or FROM_THE_START)
    held = AsyncExitStack()
    held.enter_context(own.streams.take(call.caller.tenant))
    return StreamResponse(frames, sse.SSE_FORMAT, held, own.plane.settings.events.heartbeat_s)


def _kinds(text: str) -> frozenset[str]:
    if not text:
        return frozenset()
    kinds = frozenset(text.split(","))
    if len(kinds) > _MAX_KINDS or not all(_KIND.fullmatch(kind) for kind in kinds):
        raise errors.Invalid(
            "`kind` is a noun (`token`) or a whole kind (`token.created`); up to "
            f"{_MAX_KINDS}, with commas between",
            field="kind",
        )
    return kinds


class _Selection(msgspec.Struct, frozen=True):
    """The events that a request selects, for its caller."""

    log: EventLog
    kinds: frozenset[str]
    scope: NamespaceScope
    reader: NamespaceScope

    def stream(self, after: str | None) -> AbstractAsyncContextManager[AsyncIterator[StoredEvent]]:
        return self.log.stream(after, self.kinds, self.scope, reader=self.reader)

    async def list_after(self, after: str) -> list[StoredEvent]:
        return await self.log.list_after(after, self.kinds, self.scope, reader=self.reader)


async def _following(selection: _Selection, after: str | None) -> AsyncGenerator[bytes, None]:
    while True:
        try:
            async with selection.stream(after) as events:
                async for stored in events:
                    after = stored.id
                    yield _frame(stored)
        except errors.Compacted as error:
            yield _reset(error)
            after = FROM_THE_START


async def _stored(selection: _Selection, after: str) -> AsyncGenerator[bytes, None]:
    try:
        kept = await selection.list_after(after)
    except errors.Compacted as error:
        yield _reset(error)
        kept = await selection.list_after(FROM_THE_START)
    for stored in kept:
        yield _frame(stored)


def _frame(stored: StoredEvent) -> bytes:
    return sse.frame(json_codec.encode(stored.event), event=stored.event.kind, event_id=stored.id)


def _reset(error: errors.Compacted) -> bytes:
    return sse.frame(json_codec.encode(StreamResetEvent(error.message)), event="reset")
