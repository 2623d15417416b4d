"""A service that cannot be had on this machine: every call of it is answered with the reason.

To a client that asks, "runc is not installed" is worth more than that there is no such service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpclib.const import Handler

from skerry.model import errors


class UnavailableService:
    """Stands in for a service of the given kind. Which calls it has is the kind's word."""

    def __init__(self, kind: type[Any], reason: str) -> None:
        # Only the table of its methods is asked for, which needs nothing that making one would set up.
        methods: Mapping[str, Handler] = object.__new__(kind).__mapping__()
        self._reason = reason
        self._mapping = {path: method._replace(func=self._refuse) for path, method in methods.items()}

    def __mapping__(self) -> Mapping[str, Handler]:
        return self._mapping

    async def _refuse(self, stream: object) -> None:
        raise errors.Unavailable(self._reason)
