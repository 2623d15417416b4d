"""Sources of code that a member lacks: near members that have it, or else a server.

The member where a function is registered has its code; others get only the function. This queries members by
digest; `code_fetcher` verifies and stores.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from skerry.functions.continuum.member_api import MemberClient
from skerry.functions.continuum.member_table import MemberState, MemberTable
from skerry.model import errors
from skerry.model.ids import Digest, NodeId

_AHEAD: Final = 4  # of the nearest are queried before the servers, which have all code


class CodeSources:
    """All other members, and then the servers, for their code."""

    def __init__(
        self,
        links: MemberClient,
        places: MemberTable,
        servers: Callable[[], Sequence[str]],
        fetch_from: Callable[[str, Digest], Awaitable[bytes]],
    ) -> None:
        """`fetch_from` queries one of the `servers`, HOST:PORT."""
        self._links = links
        self._places = places
        self._servers = servers
        self._fetch_from = fetch_from

    async def fetch(self, digest: Digest, source: NodeId | None = None) -> bytes:
        """The archive, from `source` if it has it. Raises `NotFound` if no member has it, `Unavailable` if
        some could not be reached."""
        sources: list[tuple[str, Callable[[Digest], Awaitable[bytes]]]] = [
            (f"{peer.member.name}: ", partial(self._links.fetch, peer.member))
            for peer in self._in_order(source)
        ]
        sources += [("", partial(self._fetch_from, server)) for server in self._servers()]
        reasons = []
        for name, fetch in sources:
            try:
                return await fetch(digest)
            except errors.NotFound:
                continue
            except errors.SkerryError as error:
                reasons.append(name + error.message)
        if reasons:
            raise errors.Unavailable("; ".join(reasons))
        raise errors.NotFound(f"no member has the code {digest}")

    def _in_order(self, source: NodeId | None) -> list[MemberState]:
        """The source, a few that are near and up, then the servers, then all others."""
        by_distance = sorted(self._places.peers.values(), key=lambda peer: peer.rtt_s)
        near = [peer for peer in by_distance if peer.is_up][:_AHEAD]
        servers = [peer for peer in by_distance if peer.member.is_server]
        first = [peer for peer in by_distance if peer.member.node == source]
        return list(dict.fromkeys([*first, *near, *servers, *by_distance]))
