"""`/events`: the durable event log as server-sent events, resumable and filtered.

A reader that asks for more than is kept is told so with a `reset` event and goes on with what there is.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.control.events.log import EventLog, StoredEvent
from skerry.kit import json_codec
from skerry.model import errors
from skerry.transport.http import sse
from skerry.transport.http.endpoints import RequestContext, StreamResponse, endpoint
from skerry.wire.own.context import OwnContext

FROM_THE_START = "0"
_KIND = re.compile(r"[a-z][a-z0-9-]{0,63}(\.[a-z][a-z0-9-]{0,63})?")
_MAX_KINDS = 32


class EventStreamQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which events, and for how long."""

    after: Annotated[
        str, Meta(description="Only what came after the event with this id; `0` for all that are kept")
    ] = ""
    kind: Annotated[
        str, Meta(description="Nouns (`token`) or whole kinds (`token.created`), with commas between")
    ] = ""
    follow: Annotated[bool, Meta(description="`false` ends after what is kept")] = True


class StreamResetEvent(msgspec.Struct, frozen=True):
    """Told instead of the events that are no longer kept."""

    reason: str


@endpoint(
    "GET",
    "/events",
    summary="What happened, as it happens",
    media=sse.MEDIA,
    raises=(errors.Invalid, errors.Overloaded),
    headers={"Last-Event-ID": "The id of the last event that was seen; goes before `after`"},
    streams=True,
)
async def follow(own: OwnContext, call: RequestContext, query: EventStreamQuery) -> StreamResponse:
    """Server-sent events: `id`, `event` (the kind) and `data` (the event as JSON).

    Without an id the stream starts now, or with `follow=false` at the oldest event. Comments keep a silent
    stream open. If events after the id are no longer kept, an event `reset` says so, and the stream goes on
    with the oldest that is.
    """
    shown = call.headers.get(b"last-event-id")
    after = (query.after if shown is None else shown.decode("latin-1")) or None
    kinds = _kinds(query.kind)
    log = own.plane.events
    if after is not None:
        log.stream(after, kinds)  # refuses what is no id, before the answer has begun
    frames = _following(log, after, kinds) if query.follow else _stored(log, after or FROM_THE_START, kinds)
    held = AsyncExitStack()
    held.enter_context(own.streams.take())
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


async def _following(log: EventLog, after: str | None, kinds: frozenset[str]) -> AsyncGenerator[bytes, None]:
    while True:
        try:
            async with log.stream(after, kinds) as events:
                async for stored in events:
                    after = stored.id
                    yield _frame(stored)
        except errors.Compacted as error:
            yield _reset(error)
            after = FROM_THE_START


async def _stored(log: EventLog, after: str, kinds: frozenset[str]) -> AsyncGenerator[bytes, None]:
    try:
        kept = await log.list_after(after, kinds)
    except errors.Compacted as error:
        yield _reset(error)
        kept = await log.list_after(FROM_THE_START, kinds)
    for stored in kept:
        yield _frame(stored)


def _frame(stored: StoredEvent) -> bytes:
    return sse.frame(json_codec.encode(stored.event), event=stored.event.kind, event_id=stored.id)


def _reset(error: errors.Compacted) -> bytes:
    return sse.frame(json_codec.encode(StreamResetEvent(error.message)), event="reset")
