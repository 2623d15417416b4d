"""What happened, as it is stored and sent: one durable record per thing worth telling.

An event is written in the transaction of the change it tells of, so neither exists without the other. Its
place in the stream is that transaction's revision; `kind` is `noun.verb`, and filters match by noun or whole.
"""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True):
    """One thing that happened to `subject` (`token/01h...`), because of `actor`."""

    kind: str
    subject: str
    at: float
    actor: str = "skerry"
    reason: str = ""
    data: dict[str, str] = msgspec.field(default_factory=dict)
    request_id: str = ""  # of the request that it follows from, as far as that is known
