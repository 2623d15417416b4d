"""Cells of nodes, asked for over a tunnel when somebody looks at a node; nothing is reported otherwise.

A list is shared by all who look within two seconds, and one node is asked once at a time. Callers check that
theirs may read nodes: a node has cells of all namespaces.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from skerry.control.nodes.registry import NodeRegistry
from skerry.control.sessions.tunnels import NodeTunnels
from skerry.kit.clock import Clock
from skerry.model import cell_reports, errors
from skerry.model.cell_reports import MAX_BYTES, MAX_CELLS, CellReport
from skerry.model.container_options import NodeFeature
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Node
from skerry.model.streams import CellListRequest

FRESH_S = 2.0
_MAX_NODES = 64  # whose lists are kept
_PATIENCE_S = 10.0
_NO_INSTANCE = InstanceId("cells")  # a tunnel has the id of an instance


@dataclass(slots=True)
class _Listing:
    """The last list of one node."""

    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    at: float = -FRESH_S
    cells: tuple[CellReport, ...] = ()


class CellLister:
    """Lists cells of nodes."""

    def __init__(self, nodes: NodeRegistry, tunnels: NodeTunnels, clock: Clock) -> None:
        self._nodes = nodes
        self._tunnels = tunnels
        self._clock = clock
        self._listings: dict[NodeId, _Listing] = {}

    async def list(self, id_or_name: str) -> tuple[CellReport, ...]:
        """All cells of the node. Raises NotFound, FailedPrecondition (it does not list them), Unavailable,
        TimedOut."""
        node = self._nodes.get(id_or_name)
        _check_lists(node)
        if node.id not in self._listings and len(self._listings) >= _MAX_NODES:
            self._listings = {id: one for id, one in self._listings.items() if one.asking.locked()}
        listing = self._listings.setdefault(node.id, _Listing())
        async with listing.asking:
            if self._clock.monotonic() - listing.at >= FRESH_S:
                listing.cells = await self._fetch(node)
                listing.at = self._clock.monotonic()
            return listing.cells

    async def _fetch(self, node: Node) -> tuple[CellReport, ...]:
        found: list[CellReport] = []
        size = 0
        try:
            async with (
                asyncio.timeout(_PATIENCE_S),
                self._tunnels.open_tunnel(node.id, _NO_INSTANCE, CellListRequest()) as tunnel,
            ):
                while (frame := await tunnel.receive()) is not None:
                    found += cell_reports.decode_lines(frame)
                    size += len(frame)
                    if size > MAX_BYTES or len(found) > MAX_CELLS:
                        raise errors.Unavailable(f"node {node.name} sent more than {MAX_CELLS:,} cells")
        except TimeoutError:
            raise errors.TimedOut(
                f"node {node.name} did not list its cells within {_PATIENCE_S:g} s; try again"
            ) from None
        return tuple(found)


def _check_lists(node: Node) -> None:
    if node.is_borrowed:
        raise errors.FailedPrecondition(
            f"node {node.name} is borrowed: its cells are the provider's; its instances are listed here"
        )
    if NodeFeature.CELLS not in node.facts.features:
        raise errors.FailedPrecondition(
            f"node {node.name} does not list its cells; upgrade Skerry there, or run `skerry cell list` on it"
        )
