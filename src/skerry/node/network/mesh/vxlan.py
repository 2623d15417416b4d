"""The mesh interface with VXLAN: packets travel in plain text. For networks that the operator trusts.

A peer has a MAC address derived from its id; packets for its subnets go to that address, which a forwarding
entry maps to its endpoint. Everything blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.mesh import parse_endpoint, probe_address
from skerry.node.network.commands import NetworkCommands
from skerry.node.network.mesh import programs as mesh_programs
from skerry.node.network.mesh.interface import LinkSetup
from skerry.node.network.mesh.plans import PeerConfig, PeerStatus
from skerry.node.network.mesh.programs import MeshPrograms

_NUMBER: Final = 5353  # of the network; a port has one network only


def mac_of_node(node: NodeId) -> str:
    """The MAC address of a node in the mesh."""
    return ":".join(["02", *(f"{byte:02x}" for byte in probe_address(node).packed[-5:])])


class VxlanInterface:
    """A `MeshInterface` that does not encrypt."""

    def __init__(
        self, programs: MeshPrograms, commands: NetworkCommands, link: LinkSetup, node: NodeId, port: int
    ) -> None:
        self._programs = programs
        self._commands = commands
        self._link = link
        self._node = node
        self._port = port
        self._peers: dict[str, PeerConfig] = {}
        self._endpoints: dict[str, str] = {}
        self._is_made = False

    def ensure(self) -> bool:
        if self._is_made and self._link.exists:
            return False
        self._link.delete()  # of an earlier agent: what it forwards to is not known
        self._peers, self._endpoints = {}, {}
        self._commands.ip(
            [
                f"link add dev {self._link.name} address {mac_of_node(self._node)} type vxlan "
                f"id {_NUMBER} dstport {self._port} nolearning udpcsum"
            ]
        )
        self._link.bring_up()
        self._is_made = True
        return True

    def configure(self, private_key: str, port: int, peers: Sequence[PeerConfig]) -> None:
        peers_by_key = {peer.public_key: peer for peer in peers if peer.has_probe}
        for key in self._peers.keys() - peers_by_key.keys():
            self._forget(self._peers[key])
        for key, peer in peers_by_key.items():
            endpoint = self._endpoints.get(key) or peer.endpoint
            if endpoint:
                self._forward(peer, endpoint)
        self._peers = peers_by_key
        self._link.set_probe_routes({peer.node for peer in peers})

    def _forward(self, peer: PeerConfig, endpoint: str) -> None:
        address, port = parse_endpoint(endpoint)
        mac, name = mac_of_node(peer.node), self._link.name
        mesh_programs.run(
            [self._programs.bridge, "fdb", "replace", mac, "dev", name, "dst", address, "port", str(port),
             "self", "permanent"]
        )  # fmt: skip
        self._commands.ip(
            [f"neighbour replace {probe_address(peer.node)} lladdr {mac} dev {name} nud permanent"]
        )
        self._endpoints[peer.public_key] = endpoint

    def _forget(self, peer: PeerConfig) -> None:
        name = self._link.name
        with suppress(errors.Unavailable):
            mesh_programs.run([self._programs.bridge, "fdb", "del", mac_of_node(peer.node), "dev", name])
        self._endpoints.pop(peer.public_key, None)

    def retry(self, peer: PeerConfig, endpoint: str) -> None:
        self._forward(peer, endpoint)

    def status(self) -> dict[str, PeerStatus]:
        return {key: PeerStatus(key, self._endpoints.get(key, "")) for key in self._peers}

    def port(self) -> int:
        return self._port if self._link.exists else 0

    def remove(self) -> None:
        self._link.delete()
        self._peers, self._endpoints = {}, {}
