"""Members and functions that the control plane sends to a node, kept on disk:
`skerry.node.agent.session.MemberListener`."""

from __future__ import annotations

from pathlib import Path

from skerry.functions.continuum.function_replica import FunctionReplica
from skerry.functions.continuum.member_cache import MemberCache
from skerry.kit.clock import Clock
from skerry.model.node_messages import FunctionUpdate, MemberList
from skerry.model.settings import FunctionSettings


class MemberSync:
    """`await MemberSync.open(...)`, with what was known when this node ended."""

    def __init__(self, members: MemberCache, copies: FunctionReplica) -> None:
        self.members = members
        self.copies = copies

    @classmethod
    async def open(cls, folder: Path, settings: FunctionSettings, clock: Clock) -> MemberSync:
        copies = await FunctionReplica.open(folder, settings, clock)
        return cls(MemberCache(folder / "members.json"), copies)

    async def members_changed(self, members: MemberList) -> None:
        await self.members.update(members)

    async def functions_changed(self, update: FunctionUpdate) -> None:
        await self.copies.update(update)
