"""Where code comes from that a member lacks: those that are near and have it, or else a server.

Who registers a function keeps its code; others hear of the function alone. This only asks around, by digest;
who wants the code, and where it is put, is `code_fetcher`'s business.
"""

from __future__ import annotations

from typing import Final

from skerry.functions.continuum.member_api import MemberClient
from skerry.functions.continuum.member_table import MemberState, MemberTable
from skerry.model import errors
from skerry.model.ids import Digest, NodeId

_AHEAD: Final = 4  # of the nearest are asked before the servers, which have the code of everything


class CodeSources:
    """All other members, for their code."""

    def __init__(self, links: MemberClient, places: MemberTable) -> None:
        self._links = links
        self._places = places

    async def fetch(self, digest: Digest, source: NodeId | None = None) -> bytes:
        """The archive, which is what its digest says, of `source` if it has it. Raises `NotFound` if nobody
        has it.

        `Unavailable` says who would not give it, or could not be asked.
        """
        reasons = []
        for peer in self._in_order(source):
            try:
                return await self._links.fetch(peer.member, digest)
            except errors.NotFound:
                continue
            except errors.SkerryError as error:
                reasons.append(f"{peer.member.name}: {error.message}")
        if reasons:
            raise errors.Unavailable("; ".join(reasons))
        raise errors.NotFound(f"no other node has the code {digest}")

    def _in_order(self, source: NodeId | None) -> list[MemberState]:
        """The source, a few that are near and up, then the servers, then all others."""
        by_distance = sorted(self._places.peers.values(), key=lambda peer: peer.rtt_s)
        near = [peer for peer in by_distance if peer.is_up][:_AHEAD]
        servers = [peer for peer in by_distance if peer.member.is_server]
        first = [peer for peer in by_distance if peer.member.node == source]
        return list(dict.fromkeys([*first, *near, *servers, *by_distance]))
