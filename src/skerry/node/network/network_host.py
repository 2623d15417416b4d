"""What the machine and the user of a node give the network of its containers.

As root of the machine, the bridge is in the network namespace of this process, and user namespaces own the
network namespaces on it. A node of an ordinary user has a network namespace of its own.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from skerry.node.network.bridge_namespace import OWN_NAMESPACE, BridgeNamespace
from skerry.node.network.forwarding.port_forwarder import PortForwarder
from skerry.node.user_namespaces import UserNamespaces


class NetworkHost(NamedTuple):
    """Where the bridge is."""

    users: UserNamespaces | None = None  # that own network namespaces; None: they belong to this process's
    namespace: BridgeNamespace = OWN_NAMESPACE
    forwarder: PortForwarder | None = None  # of published ports; None: the rules of the firewall suffice
    groups: int = 1 << 31  # gids that are mapped in this process's user namespace, from 0 on


ROOT_HOST: Final = NetworkHost()
