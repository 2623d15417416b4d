"""The members of this cloud: nodes that take calls of functions, and servers, which forward calls.

A node is a member by its record (`skerry.control.nodes.registry`), a server by `member/<id>` under a lease. A
member that is not live stays a member: others may still reach it, and it keeps results for callers.
`skerry.control.sessions.node_session` sends the members to nodes; callers find out whether a member can be
reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from skerry.control.nodes.registry import NodeRegistry
from skerry.kit import json_codec
from skerry.kit.callbacks import CallbackList
from skerry.model.members import ContinuumMember
from skerry.store.protocol import Store
from skerry.store.tables.leases import LeasedKey
from skerry.store.tables.table import Table, json_of

PREFIX: Final = "member/"
_PAUSE_S: Final = 0.2  # changes within this time are sent together


class MemberDirectory:
    """All of them, in memory."""

    def __init__(self, store: Store, nodes: NodeRegistry, *, pause_s: float = _PAUSE_S) -> None:
        self._store = store
        self._nodes = nodes
        self._servers = Table(store, PREFIX, json_of(ContinuumMember))
        self._pause_s = pause_s
        self._changed = asyncio.Event()
        self._is_ready = asyncio.Event()
        self._listeners: CallbackList[[]] = CallbackList()
        self.all: tuple[ContinuumMember, ...] = ()  # by id
        self._servers.subscribe(lambda changes: self._changed.set())
        nodes.listen(lambda node: self._changed.set())

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever `all` is another."""
        self._listeners.add(changed)

    async def ready(self) -> None:
        """Wait until all members are known that were there before this server started."""
        await self._is_ready.wait()

    async def run(self) -> None:
        """Follow the members, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._servers.run())
            await self._nodes.ready()
            await self._servers.ready()
            while True:
                self._changed.clear()
                self._refresh()
                self._is_ready.set()
                await self._changed.wait()
                await asyncio.sleep(self._pause_s)

    async def register(self, own: ContinuumMember, *, lease_s: int) -> None:
        """Register this process, which is no node, as a member: for ever, and `lease_s` longer, because it
        may start again with the results that it keeps for callers."""
        key = PREFIX + own.node
        await LeasedKey(self._store, key, json_codec.encode(own), lease_s=lease_s, leaves=False).run()

    def _refresh(self) -> None:
        members = {member.node: member for member in self._servers.values()}
        members |= {node.id: node.member for node in self._nodes.list() if node.member is not None}
        members_now = tuple(members[node] for node in sorted(members))
        if members_now != self.all:
            self.all = members_now
            self._listeners.notify()
