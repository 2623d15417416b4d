"""The feed of network objects: the objects of all sources for node sessions, and reports to their handlers.

A source is one concern (locations of nodes, addresses of services, peers of the mesh) and decides what each
node needs to know. Node sessions send a node all objects first and then changes
(`skerry.control.sessions.node_session`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from skerry.kit.callbacks import CallbackList
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject, ObjectChange

ReportHandler = Callable[[NodeId, Sequence[NetworkObject]], Awaitable[None]]


class NetworkSource(Protocol):
    """Objects of one concern."""

    def objects(self, node: NodeId) -> Iterable[NetworkObject]:
        """All that the node needs to know now."""
        ...

    def listen(self, changed: ObjectChange) -> None:
        """Call `changed` when an object of one node, or of all nodes (None), changes or is removed (None).
        A source whose objects differ from node to node names the node."""
        ...

    async def ready(self) -> None:
        """Wait until what is in the store is known. What is newer follows as a change."""
        ...


class NetworkObjects:
    """The objects of all sources."""

    def __init__(self) -> None:
        self._sources: list[NetworkSource] = []
        self._handlers: dict[str, ReportHandler] = {}
        self._listeners: CallbackList[[NodeId | None, NetworkKey, NetworkObject | None]] = CallbackList()

    def add(self, source: NetworkSource) -> None:
        """Send the objects of `source` too."""
        self._sources.append(source)
        source.listen(self._listeners.notify)

    def handle(self, kind: type[NetworkObject], handler: ReportHandler) -> None:
        """Call `handler` with the objects of this kind that nodes report."""
        self._handlers[kind.kind] = handler

    def objects(self, node: NodeId) -> Sequence[NetworkObject]:
        return [each for source in self._sources for each in source.objects(node)]

    def listen(self, changed: ObjectChange) -> None:
        self._listeners.add(changed)

    async def ready(self) -> None:
        for source in self._sources:
            await source.ready()

    async def reported(self, node: NodeId, objects: Sequence[NetworkObject]) -> None:
        """Give each kind to its handler; kinds without one are ignored."""
        by_kind: dict[str, list[NetworkObject]] = {}
        for each in objects:
            by_kind.setdefault(each.kind, []).append(each)
        for kind, some in by_kind.items():
            if (handler := self._handlers.get(kind)) is not None:
                await handler(node, some)
