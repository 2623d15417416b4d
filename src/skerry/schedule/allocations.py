"""The account of one node: what it has, what is bound to it, what is left to give.

Kept by `skerry.schedule.scheduler` in O(1) per change and read by both ways of searching, so that they work
on the same numbers. An account may exist before its node is known and after it left; and it may be overdrawn,
when a node comes back with less room than it had. Then there is nothing left to give, and never less.
"""

from __future__ import annotations

from skerry.model.ids import InstanceId, NodeId
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.schedule.requests import HostPort, NodeView, PlacementRequest

# Shares are whole numbers, so that every way of computing them comes to the same; four fit in 63 bits.
WHOLE = 2**15
ALL_FREE = (WHOLE + 1) ** 4

UNSCHEDULABLE = -1  # less than the least that can be asked for


class NodeAllocation:
    """One node's account; `cpu`, `memory`, `disk` and `volume` are what the searches read."""

    __slots__ = (
        "_cpu",
        "_disk",
        "_memory",
        "asks",
        "cpu",
        "disk",
        "doors",
        "memory",
        "node",
        "view",
        "volume",
    )

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.view: NodeView | None = None
        self.asks: dict[InstanceId, PlacementRequest] = {}
        self.doors: dict[HostPort, set[InstanceId]] = {}
        self._cpu = self._memory = self._disk = 0  # given away
        self.cpu = UNSCHEDULABLE  # to be given; `UNSCHEDULABLE` if it takes nothing at all
        self.memory = self.disk = 0
        self.volume = 0

    def see(self, view: NodeView | None) -> None:
        """The node is now as `view` says, or not there."""
        self.view = view
        self._settle()

    def take(self, ask: PlacementRequest) -> None:
        """Something was bound here."""
        self.asks[ask.instance] = ask
        for door in ask.doors:
            self.doors.setdefault(door, set()).add(ask.instance)
        room = ask.room
        self._cpu += room.cpu
        self._memory += room.memory
        self._disk += room.disk
        self._settle()

    def give_back(self, instance: InstanceId) -> PlacementRequest:
        """What was bound here is no more."""
        ask = self.asks.pop(instance)
        for door in ask.doors:
            holders = self.doors[door]
            holders.discard(instance)
            if not holders:
                del self.doors[door]
        room = ask.room
        self._cpu -= room.cpu
        self._memory -= room.memory
        self._disk -= room.disk
        self._settle()
        return ask

    def free(self) -> Resources:
        """What is not given away, whether or not the node takes work."""
        room = self.known.room
        return Resources(
            Millicores(max(0, room.cpu - self._cpu)),
            Megabytes(max(0, room.memory - self._memory)),
            Gigabytes(max(0, room.disk - self._disk)),
        )

    @property
    def known(self) -> NodeView:
        assert self.view is not None, "only nodes that are there are asked"
        return self.view

    def has_room(self, room: Resources) -> bool:
        """True if `room` can be given; nothing can of a node that is shut."""
        return room.cpu <= self.cpu and room.memory <= self.memory and room.disk <= self.disk

    @property
    def is_shut(self) -> bool:
        """True if it takes no work, or has no address for more."""
        return self.cpu == UNSCHEDULABLE

    @property
    def has_address(self) -> bool:
        return len(self.asks) < self.known.addresses

    def _settle(self) -> None:
        """Bring what the searches read up to date.

        The volume is the product of the free shares. A node that is nearly out of one part has little of it,
        however much it has of the others. Addresses are a part too, so that instances which ask for no room
        do not all look for the same node.
        """
        view = self.view
        if view is None:
            return
        room, addresses = view.room, view.addresses
        cpu = room.cpu - self._cpu
        memory = room.memory - self._memory
        disk = room.disk - self._disk
        left = addresses - len(self.asks)
        if cpu < 0:
            cpu = 0
        self.memory = memory = memory if memory > 0 else 0
        self.disk = disk = disk if disk > 0 else 0
        self.cpu = cpu if view.takes_work and left > 0 else UNSCHEDULABLE
        self.volume = (
            ((cpu * WHOLE // room.cpu if room.cpu else WHOLE) + 1)
            * ((memory * WHOLE // room.memory if room.memory else WHOLE) + 1)
            * ((disk * WHOLE // room.disk if room.disk else WHOLE) + 1)
            * ((left * WHOLE // addresses if left > 0 else 0) + 1)
        )
