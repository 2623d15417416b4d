"""How much work a client may cause: tokens for answers, and numbers of what waits or is open. Pure.

A token is about the work of an answer from memory; whatever costs more takes more. A client in debt is not
answered until it has earned tokens again, and all together may not cause more than a share of the process's
time, which the agent needs for other things too.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

_BURST_S: Final = 2.0  # tokens of so long can be saved
_MOST_CLIENTS: Final = 4096


class WorkBudget:
    """`per_client` tokens a second for each client, and `in_all` for all of them."""

    def __init__(self, per_client: float, in_all: float) -> None:
        self._per_client = per_client
        self._in_all = in_all
        self._level, self._at = in_all * _BURST_S, 0.0
        self._clients: OrderedDict[str, list[float]] = OrderedDict()  # level and time, the last one last

    def admit(self, client: str, now: float) -> bool:
        """False if the client, or all of them, have used up their tokens; else one is taken."""
        entry = self._clients.get(client)
        if entry is None:
            if len(self._clients) >= _MOST_CLIENTS:
                self._clients.popitem(last=False)
            entry = self._clients[client] = [self._per_client * _BURST_S, now]
        else:
            self._clients.move_to_end(client)
            earned = (now - entry[1]) * self._per_client
            entry[0] = min(self._per_client * _BURST_S, entry[0] + earned)
            entry[1] = now
        if entry[0] < 1.0:
            return False
        self._level = min(self._in_all * _BURST_S, self._level + (now - self._at) * self._in_all)
        self._at = now
        if self._level < 1.0:
            return False
        entry[0] -= 1.0
        self._level -= 1.0
        return True

    def charge(self, client: str, tokens: float) -> None:
        """Take more tokens, even if that is a debt."""
        if (entry := self._clients.get(client)) is not None:
            entry[0] -= tokens
        self._level -= tokens


class ClientLimit:
    """How many of something clients have: at most `per_client` each, and `in_all` together."""

    def __init__(self, per_client: int, in_all: int) -> None:
        self._per_client = per_client
        self._in_all = in_all
        self._counts: dict[str, int] = {}
        self.total = 0

    def acquire(self, client: str) -> bool:
        """One more; False if that is too many."""
        count = self._counts.get(client, 0)
        if count >= self._per_client or self.total >= self._in_all:
            return False
        self._counts[client] = count + 1
        self.total += 1
        return True

    def release(self, client: str) -> None:
        self.total -= 1
        if self._counts[client] == 1:
            del self._counts[client]
        else:
            self._counts[client] -= 1
