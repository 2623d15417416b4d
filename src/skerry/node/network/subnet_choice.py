"""Which subnet a node begins with, and which networks of its machine are not free for one.

Used by `skerry.node.network.network`. A machine's routes are read when asked for: they change.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network

import structlog

from skerry.model import errors
from skerry.model.settings import NetworkSettings
from skerry.node.network import adoption, host_routes, subnets
from skerry.node.network.attachments import Attachment
from skerry.node.network.subnets import KernelNames, NodeSubnet

log = structlog.get_logger(__name__)


class SubnetChoice:
    """Chooses for the Skerry with these `names`."""

    def __init__(self, settings: NetworkSettings, names: KernelNames, key: str) -> None:
        self._settings = settings
        self._names = names
        self._key = key

    def first(self, assigned: str, adopted: Sequence[Attachment], *, waits: bool) -> NodeSubnet | None:
        """The subnet before the first session with a server. Raises FailedPrecondition."""
        if assigned:
            try:
                self.check_free(NodeSubnet(assigned))
            except errors.SkerryError as error:
                log.warning("network.subnet_unusable", subnet=assigned, reason=error.message)
            else:
                return NodeSubnet(assigned)
        elif self._settings.subnet and not waits:
            subnet = NodeSubnet(self._settings.subnet)
            self.check_free(subnet)
            return subnet
        if networks := adoption.networks_of(adopted):
            return NodeSubnet(str(networks[0]))
        return None if waits or assigned else NodeSubnet(subnets.choose(self._key, self.routed_networks()))

    def routed_networks(self) -> list[IPv4Network]:
        """Networks with other routes of this machine."""
        return host_routes.networks_in_use(self._foreign_routes(), self._names.bridge)

    def check_free(self, subnet: NodeSubnet) -> None:
        """Raises FailedPrecondition."""
        host_routes.check_free(subnet, self._foreign_routes(), self._names.bridge)

    def _foreign_routes(self) -> list[host_routes.HostRoute]:
        """Without those of the mesh, which follow the subnets of nodes."""
        return [each for each in host_routes.read() if each.interface != self._names.mesh]
