"""Locates async calls: a call is stored where it was accepted, and its id tells where, so any member can be
polled.

An id ends in a few characters derived from its origin's node id, which are compared with the present members;
ids without them, of a single node, are known here or nowhere. The result of a call is also on a second member
(`result_replication`), which is polled if the origin does not know it or answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from skerry.functions.asynchronous import results
from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum import replica_placement
from skerry.functions.continuum.member_api import MemberClient
from skerry.functions.continuum.member_table import MemberTable
from skerry.functions.continuum.replica_placement import origin_suffix
from skerry.model import errors
from skerry.model.calls import CallRequest, CallState
from skerry.model.ids import NodeId
from skerry.model.members import ContinuumMember

_POLL_AGAIN_S: Final = 0.25  # of a call of another member, while a poller waits for its end


def id_maker(node: NodeId) -> Callable[[CallRequest, float], str]:
    """Makes ids of calls that are accepted at `node`."""
    mark = origin_suffix(node)
    return lambda request, now: f"{results.new_id(request, now)}-{mark}"


class LocalAsyncCalls(Protocol):
    """The async calls that were accepted here, such as
    `skerry.functions.asynchronous.runner.AsyncCallRunner`."""

    async def accept(self, request: CallRequest) -> str: ...

    async def poll(self, id: str, *, wait_s: float = 0.0) -> AsyncCallResult | None: ...

    async def keep_copy(
        self, id: str, state: CallState, ended_at: float, body: bytes, *, holder: str
    ) -> None:
        """Store a copy of the result of a call that another member accepted; `holder` has it too."""
        ...


class AsyncCallLocator:
    """Accepts async calls here, and finds those that were accepted anywhere."""

    def __init__(self, local: LocalAsyncCalls, links: MemberClient, places: MemberTable) -> None:
        self._local = local
        self._links = links
        self._places = places
        self._mark = origin_suffix(places.me.node)
        self.accept = local.accept

    async def poll(self, id: str, *, wait_s: float = 0.0) -> AsyncCallResult | None:
        """Its state when it has ended, or after `wait_s`; None if it is not known. Raises `Unavailable` while
        its origin cannot be reached, and no member has a copy of its result."""
        now = asyncio.get_running_loop().time
        until = now() + wait_s
        while True:
            polled = await self._find(id, until - now())
            left_s = until - now()
            if polled is None or not polled.state.is_pending or left_s <= 0:
                return polled
            await asyncio.sleep(min(left_s, _POLL_AGAIN_S))  # its origin is another member

    async def _find(self, id: str, wait_s: float) -> AsyncCallResult | None:
        mark = replica_placement.mark_in(id)
        if not mark:
            return await self._local.poll(id, wait_s=wait_s)
        members = [peer.member for peer in self._places.peers.values()]
        # Two nodes may have the same mark, if hardly ever.
        origins = [member for member in members if origin_suffix(member.node) == mark]
        polled = await self._local.poll(id, wait_s=wait_s) if mark == self._mark else None
        unreachable: list[str] = []
        if polled is None:
            polled, unreachable = await self._poll_members(origins, id)
        if polled is None and mark != self._mark:
            polled = await self._local.poll(id)  # a copy may be here
        if polled is None:
            others = [member for member in members if member not in origins]
            polled, _ = await self._poll_members(replica_placement.queried_holders(id, others), id)
        if polled is None and unreachable:
            raise errors.Unavailable(
                f"the node that accepted the call cannot be reached ({'; '.join(unreachable)}); poll again "
                "later, or "
                "poll there"
            )
        return polled

    async def _poll_members(
        self, members: Iterable[ContinuumMember], id: str
    ) -> tuple[AsyncCallResult | None, list[str]]:
        """The answer of the first of them that knows it, and those that could not be reached before."""
        unreachable: list[str] = []
        for member in members:
            try:
                polled = await self._links.poll(member, id)
            except errors.SkerryError as error:
                unreachable.append(f"{member.name}: {error.message}")
                continue
            if polled is not None:
                return polled, unreachable
        return None, unreachable
