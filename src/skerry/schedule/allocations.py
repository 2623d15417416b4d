"""The allocation of one node: its resources, the requests bound to it, and what is free.

`skerry.schedule.scheduler` keeps it in O(1) per change; both searches read it, so they work on the same
numbers. An allocation may exist before its node is registered and after it left. It may exceed the resources
of a node that comes back with fewer; then nothing is free, and never less than nothing.
"""

from __future__ import annotations

from skerry.model.ids import InstanceId, NodeId
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.schedule.requests import HostPort, NodeView, PlacementRequest

# Shares are whole numbers, so that both searches compute the same; the product of four fits in 63 bits.
WHOLE = 2**15
ALL_FREE = (WHOLE + 1) ** 4

UNSCHEDULABLE = -1  # less than any request


class NodeAllocation:
    """The allocation of one node; the searches read `cpu`, `memory`, `disk` and `volume`."""

    __slots__ = (
        "_cpu",
        "_disk",
        "_memory",
        "addressed",
        "cpu",
        "devices",
        "disk",
        "host_ports",
        "memory",
        "node",
        "replicas",
        "requests",
        "view",
        "volume",
    )

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.view: NodeView | None = None
        self.requests: dict[InstanceId, PlacementRequest] = {}
        self.addressed = 0  # of these, the ones with an address
        self.host_ports: dict[HostPort, set[InstanceId]] = {}
        self.devices: dict[str, set[InstanceId]] = {}  # that are held, by their full names
        self.replicas: dict[str, int] = {}  # by group
        self._cpu = self._memory = self._disk = 0  # requested by what is bound here
        self.cpu = UNSCHEDULABLE  # free; `UNSCHEDULABLE` if the node takes nothing
        self.memory = self.disk = 0
        self.volume = 0

    def set_view(self, view: NodeView | None) -> None:
        """Set the node's present view; None if the node is not registered."""
        self.view = view
        self._recompute_free()

    def add(self, request: PlacementRequest) -> None:
        """Bind a request to this node."""
        self.requests[request.instance] = request
        self.addressed += request.has_address
        for host_port in request.host_ports:
            self.host_ports.setdefault(host_port, set()).add(request.instance)
        for device in request.assigned_devices:
            self.devices.setdefault(device, set()).add(request.instance)
        if request.group is not None:
            self.replicas[request.group] = self.replicas.get(request.group, 0) + 1
        resources = request.resources
        self._cpu += resources.cpu
        self._memory += resources.memory
        self._disk += resources.disk
        self._recompute_free()

    def remove(self, instance: InstanceId) -> PlacementRequest:
        """Unbind the request of an instance, and return it."""
        request = self.requests.pop(instance)
        self.addressed -= request.has_address
        for host_port in request.host_ports:
            holders = self.host_ports[host_port]
            holders.discard(instance)
            if not holders:
                del self.host_ports[host_port]
        for device in request.assigned_devices:
            self.devices[device].discard(instance)
            if not self.devices[device]:
                del self.devices[device]
        if request.group is not None:
            self.replicas[request.group] -= 1
            if not self.replicas[request.group]:
                del self.replicas[request.group]
        resources = request.resources
        self._cpu -= resources.cpu
        self._memory -= resources.memory
        self._disk -= resources.disk
        self._recompute_free()
        return request

    def free(self) -> Resources:
        """The free resources, whether or not the node is schedulable."""
        resources = self.current_view.resources
        return Resources(
            Millicores(max(0, resources.cpu - self._cpu)),
            Megabytes(max(0, resources.memory - self._memory)),
            Gigabytes(max(0, resources.disk - self._disk)),
        )

    @property
    def current_view(self) -> NodeView:
        assert self.view is not None, "only registered nodes are searched"
        return self.view

    def fits(self, resources: Resources) -> bool:
        """True if `resources` are free; False on an unschedulable node."""
        return resources.cpu <= self.cpu and resources.memory <= self.memory and resources.disk <= self.disk

    @property
    def is_unschedulable(self) -> bool:
        """True if the node takes no new instances, or has no address left."""
        return self.cpu == UNSCHEDULABLE

    @property
    def has_address(self) -> bool:
        return self.addressed < self.current_view.addresses

    def _recompute_free(self) -> None:
        """Compute what the searches read.

        The volume is the product of the free shares: a node that is nearly out of one resource has a small
        volume, however much of the others is free. Addresses are one of the shares, so that instances without
        a resource request do not all prefer the same node.
        """
        view = self.view
        if view is None:
            return
        resources, addresses = view.resources, view.addresses
        cpu = resources.cpu - self._cpu
        memory = resources.memory - self._memory
        disk = resources.disk - self._disk
        left = addresses - self.addressed
        if cpu < 0:
            cpu = 0
        self.memory = memory = memory if memory > 0 else 0
        self.disk = disk = disk if disk > 0 else 0
        self.cpu = cpu if view.is_schedulable and left > 0 else UNSCHEDULABLE
        self.volume = (
            ((cpu * WHOLE // resources.cpu if resources.cpu else WHOLE) + 1)
            * ((memory * WHOLE // resources.memory if resources.memory else WHOLE) + 1)
            * ((disk * WHOLE // resources.disk if resources.disk else WHOLE) + 1)
            * ((left * WHOLE // addresses if left > 0 else 0) + 1)
        )
