"""Async calls are kept where they were accepted; their ids tell where that is, so any member can be asked.

An id ends in a few characters made of its origin's node id. They name nobody, so they are compared with the
members that there are; ids without them, of a node that was alone, are known here or nowhere.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable
from typing import Final, Protocol

from skerry.functions import results
from skerry.functions.continuum.neighbours import Links
from skerry.functions.continuum.places import Places
from skerry.functions.results import Polled
from skerry.model import errors
from skerry.model.calls import Ask
from skerry.model.ids import NodeId

_LENGTH: Final = 6


@functools.lru_cache(maxsize=4096)
def mark_of(node: NodeId) -> str:
    """What the ids of calls that `node` accepts end in."""
    digest = hashlib.sha256(node.encode()).digest()
    return base64.b32encode(digest).decode("ascii")[:_LENGTH].lower()


def id_maker(node: NodeId) -> Callable[[Ask, float], str]:
    """Makes ids of calls that are accepted at `node`."""
    mark = mark_of(node)
    return lambda ask, now: f"{results.new_id(ask, now)}-{mark}"


class Kept(Protocol):
    """The async calls that were accepted here, such as `skerry.functions.asynchronous.Asynchronous`."""

    async def accept(self, ask: Ask) -> str: ...

    async def poll(self, id: str) -> Polled | None: ...


class Origins:
    """Accepts async calls here, and finds those that were accepted anywhere."""

    def __init__(self, kept: Kept, links: Links, places: Places) -> None:
        self._kept = kept
        self._links = links
        self._places = places
        self._mark = mark_of(places.me.node)
        self.accept = kept.accept

    async def poll(self, id: str) -> Polled | None:
        """How far it is; None if nobody knows it. Raises `Unavailable` while its origin cannot be asked."""
        mark = id.rpartition("-")[2]
        if mark == self._mark or len(mark) != _LENGTH:
            polled = await self._kept.poll(id)
            if polled is not None:
                return polled
        away: list[str] = []
        # Two nodes may have the same mark, if hardly ever.
        for member in [peer.member for node, peer in self._places.peers.items() if mark_of(node) == mark]:
            try:
                polled = await self._links.poll(member, id)
            except errors.SkerryError as error:
                away.append(f"{member.name}: {error.message}")
                continue
            if polled is not None:
                return polled
        if away:
            raise errors.Unavailable(
                f"the node that accepted the call cannot be asked ({'; '.join(away)}); poll again later, or "
                "poll there"
            )
        return None
