"""Where code comes from that a member lacks: those that are near and have it, or else a server.

Who registers a function keeps its code; others hear of the function alone. This only asks around, by digest;
who wants the code, and where it is put, is `code_fetcher`'s business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from skerry.functions.continuum.member_api import MemberClient
from skerry.functions.continuum.member_table import MemberState, MemberTable
from skerry.model import errors
from skerry.model.ids import Digest, NodeId

_AHEAD: Final = 4  # of the nearest are asked before the servers, which have the code of everything


class CodeSources:
    """All other members, and then the servers, for their code."""

    def __init__(
        self,
        links: MemberClient,
        places: MemberTable,
        servers: Callable[[], Sequence[str]],
        fetch_from: Callable[[str, Digest], Awaitable[bytes]],
    ) -> None:
        """`fetch_from` asks one of the `servers`, HOST:PORT."""
        self._links = links
        self._places = places
        self._servers = servers
        self._fetch_from = fetch_from

    async def fetch(self, digest: Digest, source: NodeId | None = None) -> bytes:
        """The archive, of `source` if it has it. Raises `NotFound` if nobody has it, `Unavailable` if not all
        could be asked."""
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
        raise errors.NotFound(f"nobody has the code {digest}")

    def _in_order(self, source: NodeId | None) -> list[MemberState]:
        """The source, a few that are near and up, then the servers, then all others."""
        by_distance = sorted(self._places.peers.values(), key=lambda peer: peer.rtt_s)
        near = [peer for peer in by_distance if peer.is_up][:_AHEAD]
        servers = [peer for peer in by_distance if peer.member.is_server]
        first = [peer for peer in by_distance if peer.member.node == source]
        return list(dict.fromkeys([*first, *near, *servers, *by_distance]))
