"""The network namespace of a guest's network, and its uplink.

The namespace is that of an isolated attachment to the network of this node
(`skerry.node.network.isolation`), so whatever leaves it meets the rules for guests: it reaches the internet
and nothing of this node, its cloud or its LAN. Bridge, mesh interface and rules of the guest are in it. The
buyer's networks may be the same as those of this node: so the uplink has one address and a next hop that is
in no network of either. Everything blocks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from skerry.node.kernel import namespaces
from skerry.node.network.attachments import Attachment
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.mesh.programs import SOCKETS
from skerry.node.network.subnets import KernelNames

T = TypeVar("T")
_NEXT_HOP: Final = "169.254.1.1"  # link-local, and never sent: it has the MAC address of the node's bridge


def prepare(commands: NetworkCommands, uplink: Attachment, bridge_mac: str) -> None:
    """Have one address and a default route in the namespace of `uplink`, and no other route."""

    def change() -> None:
        commands.ip(
            [
                f"address del {uplink.address}/{uplink.prefix} dev eth0",
                f"address add {uplink.address}/32 dev eth0",
            ],
            ignore_errors=True,  # an earlier agent did so
        )
        commands.ip(
            [
                f"neighbour replace {_NEXT_HOP} lladdr {bridge_mac} dev eth0 nud permanent",
                f"route replace {_NEXT_HOP} dev eth0 scope link",
                f"route replace default via {_NEXT_HOP} dev eth0 src {uplink.address}",
            ]
        )

    run_inside(Path(uplink.namespace), change)


def remove_leftovers(commands: NetworkCommands, uplink: Attachment, names: KernelNames) -> None:
    """Remove the guest's links from the namespace: the process of the mesh interface would keep it alive."""
    path = Path(uplink.namespace)

    def change() -> None:
        present = {name for _, name in socket.if_nameindex()}
        ours = [names.mesh, names.bridge]
        commands.ip([f"link delete dev {name}" for name in ours if name in present], ignore_errors=True)

    if namespaces.is_mounted(path):
        run_inside(path, change)
    (SOCKETS / f"{names.mesh}.sock").unlink(missing_ok=True)


def run_inside(path: Path, work: Callable[[], T]) -> T:
    """Run `work` in a thread that is in the network namespace mounted on `path`."""

    def enter_and_work() -> T:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            namespaces.enter_namespace(descriptor)
        finally:
            os.close(descriptor)
        return work()

    return namespaces.in_own_thread(enter_and_work)
