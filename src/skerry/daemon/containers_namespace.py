"""What containers of an ordinary user's node have instead of what root gives them: its namespaces.

Called by `skerry.daemon.containers`. The agent is in the user and mount namespace; the network namespace is
that of the holder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from skerry.daemon.role_parts import RoleContext
from skerry.kit import namespace_marker
from skerry.kit.namespace_marker import NamespaceMarker
from skerry.model import errors
from skerry.model.enforcement import ContainerNetwork, Isolation, NodeEnforcement, RootFilesystem
from skerry.node.containers.copied_roots import CopiedRoots, FuseOverlays
from skerry.node.containers.overlays import Overlays
from skerry.node.layers.unpacker.layer_writer import MappedIds
from skerry.node.network.bridge_namespace import BridgeNamespace
from skerry.node.network.forwarding.port_forwarder import PortForwarder
from skerry.node.network.network_host import NetworkHost
from skerry.node.network.user_mode_network import UserModeNetwork
from skerry.node.rootless import holder

_ROOTS: Final[dict[RootFilesystem, type[Overlays]]] = {
    RootFilesystem.OVERLAY: Overlays,
    RootFilesystem.FUSE_OVERLAYFS: FuseOverlays,
    RootFilesystem.COPY: CopiedRoots,
}


class ContainersNamespace(msgspec.Struct, frozen=True):
    """The namespaces of this process, for containers."""

    marker: NamespaceMarker
    enforcement: NodeEnforcement
    network: int  # descriptor of the network namespace

    @property
    def ids(self) -> MappedIds:
        return MappedIds(self.marker.user_ids, self.marker.group_ids)

    @property
    def id_count(self) -> int:
        """Of users, and of groups, that containers may have."""
        return min(self.ids)

    @property
    def shared_users(self) -> str:
        """What makes containers less safe than root's, in a plain sentence."""
        return (
            "containers share the users of this node: root in one is the user who started it "
            f"(uid {self.marker.uid}), also for another container or program of that user, should it escape; "
            "nothing runs for others here"
        )

    def network_host(self) -> NetworkHost:
        namespace = BridgeNamespace(self.network)
        return NetworkHost(None, namespace, PortForwarder(namespace), self.ids.groups)

    def user_mode_network(self) -> UserModeNetwork | None:
        """None where nothing can connect containers to other machines."""
        program = self.enforcement.network
        if program not in (ContainerNetwork.PASTA, ContainerNetwork.SLIRP4NETNS):
            return None
        return UserModeNetwork(self.network, program)

    def overlays(self, folder: Path, boot: str) -> Overlays:
        return _ROOTS[self.enforcement.filesystem](folder, boot, is_private=True)


def of_this_process(context: RoleContext) -> ContainersNamespace | None:
    """None as root of the machine. Raises Unavailable if the holder was killed."""
    if context.enforcement.isolation is not Isolation.USER_NAMESPACE:
        return None
    marker = namespace_marker.read()
    if marker is None:
        raise errors.Internal("this process is not in the user namespace of its node")
    try:
        network = holder.network_namespace(marker)
    except OSError as error:
        raise errors.Unavailable(
            "containers: the process that holds the namespaces of this node was killed; stop what runs here, "
            "and start again"
        ) from error
    context.undo.callback(os.close, network)
    return ContainersNamespace(marker, context.enforcement, network)
