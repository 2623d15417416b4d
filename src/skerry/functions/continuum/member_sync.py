"""What a node hears of members and functions, and keeps: `skerry.node.agent.session.MemberListener`."""

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

    async def members_changed(self, told: MemberList) -> None:
        await self.members.hear(told)

    async def functions_changed(self, told: FunctionUpdate) -> None:
        await self.copies.hear(told)
