"""What reads a connection once a request has taken it over for another protocol."""

from __future__ import annotations

from typing import Protocol


class UpgradedProtocol(Protocol):
    """The reader of a connection after an upgrade from HTTP."""

    def data_received(self, data: bytes) -> None: ...

    def ended(self) -> None:
        """Nothing more will come. May be called more than once."""
        ...
