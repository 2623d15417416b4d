"""Events: one durable record per change that users should know.

An event is written in the transaction of its change, so neither exists without the other. Its position in the
stream is that transaction's revision; `kind` is `noun.verb`, and filters match by noun or whole.
"""

from __future__ import annotations

from typing import Final

import msgspec

NAMESPACE: Final = "namespace"  # in `data`
_NAMED_PARTS: Final = 3


class Event(msgspec.Struct, frozen=True):
    """One thing that happened to `subject` (`token/01h...`), because of `actor`."""

    kind: str
    subject: str
    at: float
    actor: str = "skerry"
    reason: str = ""
    data: dict[str, str] = msgspec.field(default_factory=dict)
    request_id: str = ""  # of the request that it follows from, as far as that is known

    @property
    def namespace(self) -> str | None:
        """That of its subject; None for what has none, such as a node. The subject of an object with a name
        is `NOUN/NAMESPACE/NAME`, and of others `NOUN/ID`."""
        if stated := self.data.get(NAMESPACE):
            return stated
        parts = self.subject.split("/")
        return parts[1] if len(parts) == _NAMED_PARTS else None
