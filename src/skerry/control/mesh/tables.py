"""The records of the mesh: what nodes last reported of themselves and of their links.

Every server writes what the nodes of its sessions report, and reads what all do.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.mesh import MeshLinks, MeshNode
from skerry.store.protocol import Store
from skerry.store.tables.table import Record, Table, json_of

log = structlog.get_logger(__name__)

_REFRESH_S: Final = 10.0  # measurements of links are written no more often than this


class MeshNodeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of the mesh, and where a server sees it."""

    node: MeshNode
    observed: str = ""  # the address of its session


class MeshLinksRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The links of a node, at the time of its report."""

    links: MeshLinks
    at: float


class MeshTables:
    """Both tables."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._clock = clock
        self.nodes = Table(store, "mesh-node/", json_of(MeshNodeRecord))
        self.links = Table(store, "mesh-links/", json_of(MeshLinksRecord))

    async def run(self) -> None:
        """Follow the store, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nodes.run())
            group.create_task(self.links.run())

    async def ready(self) -> None:
        await self.nodes.ready()
        await self.links.ready()

    async def put_node(self, node: MeshNode, observed: str) -> None:
        """A node reported itself. Without an address of its session, the last one stays."""
        record = self.nodes.get(node.node)
        if not observed and record is not None:
            observed = record.value.observed
        now = MeshNodeRecord(node, observed)
        if record is None or record.value != now:
            await self.nodes.commit([self.nodes.put(node.node, now)])

    async def put_links(self, links: MeshLinks) -> None:
        """A node reported its links. A report that differs in measurements only is written now and then."""
        record, at = self.links.get(links.node), self._clock.now()
        if record is not None:
            before = record.value
            is_recent = 0 <= at - before.at < _REFRESH_S
            if is_recent and _lasting(before.links) == _lasting(links):
                return
        await self.links.commit([self.links.put(links.node, MeshLinksRecord(links, at))])

    async def remove(self, node: NodeId) -> None:
        """A node was unregistered."""
        try:
            if self.nodes.get(node) is not None:
                await self.nodes.commit([self.nodes.delete(node)])
            if self.links.get(node) is not None:
                await self.links.commit([self.links.delete(node)])
        except errors.Conflict:
            log.debug("mesh.removed_elsewhere", node=node)


def lasting_links(record: Record[MeshLinksRecord] | None) -> object:
    """What decisions depend on: without measurements."""
    return None if record is None else _lasting(record.value.links)


def _lasting(links: MeshLinks) -> dict[NodeId, tuple[bool | None, str, str, str]]:
    return {link.node: (link.is_up, link.endpoint, link.public_key, link.next_key) for link in links.links}
