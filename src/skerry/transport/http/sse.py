"""Server-sent events: how frames are written, and in what manner they are streamed."""

from __future__ import annotations

from skerry.transport.http.streaming import StreamFormat

MEDIA = "text/event-stream"
HEARTBEAT = b": still here\n\n"
GOODBYE = b": the server stops; come back with Last-Event-ID\n\n"

SSE_FORMAT = StreamFormat(MEDIA, HEARTBEAT, GOODBYE)


def frame(data: bytes, *, event: str = "", event_id: str = "") -> bytes:
    """One event; `data` may have several lines, `event` and `event_id` must not."""
    parts = []
    if event_id:
        parts.append(b"id: " + event_id.encode() + b"\n")
    if event:
        parts.append(b"event: " + event.encode() + b"\n")
    parts.extend(b"data: " + line + b"\n" for line in data.split(b"\n"))
    parts.append(b"\n")
    return b"".join(parts)
