"""How both sides of the market write events; `skerry.control.events.log` does it."""

from __future__ import annotations

from typing import Protocol

from skerry.store.protocol import Put


class MarketEventWriter(Protocol):
    """The operation that writes an event, for the transaction of the change it tells of."""

    def put(self, kind: str, subject: str, *, actor: str, reason: str = "", **data: str) -> Put: ...
