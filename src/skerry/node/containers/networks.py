"""The networks that containers of this node may be attached to: its own, and those of guests.

A container in a leased cell that takes part in the mesh of its buyer is attached to the network of that guest
(`skerry.node.guest_networks`); all others to the bridge of this node, guests isolated.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import NamedTuple

from skerry.model.containers import ContainerSpec
from skerry.model.network import NetworkPolicy
from skerry.node.guest_networks.networks import GuestNetworks
from skerry.node.network.network import Attachment, Network


class ContainerNetworks(NamedTuple):
    """Chooses the network of each container."""

    own: Network
    guests: GuestNetworks | None = None

    def attachments(self) -> dict[str, Attachment]:
        """Attachments of containers, by owner."""
        found = self.own.attachments()
        if self.guests is not None:
            for owner in self.guests.uplinks:
                found.pop(owner, None)
            for network in self.guests.all():
                found |= network.attached
        return found

    async def attach(self, spec: ContainerSpec, policy: NetworkPolicy) -> Attachment:
        """Raises the errors of `Network.attach`."""
        network = None if self.guests is None or not spec.inside else self.guests.get(spec.inside)
        if network is not None and network.is_joined and spec.is_isolated:
            return await network.attach(spec.name, policy)
        return await self.own.attach(spec.name, spec.ports, is_isolated=spec.is_isolated, policy=policy)

    async def detach(self, name: str) -> None:
        """Raises Unavailable: detach again."""
        if self.guests is not None and (network := self.guests.of_container(name)) is not None:
            self.guests.forget_sockets(network.attached[name])
            await network.detach(name)
        else:
            await self.own.detach(name)

    async def publish(self, name: str) -> None:
        if self.guests is None or self.guests.of_container(name) is None:  # a guest publishes none
            await self.own.publish(name)

    async def restrict(self, name: str, policy: NetworkPolicy) -> None:
        """Raises Unavailable."""
        if self.guests is not None and (network := self.guests.of_container(name)) is not None:
            await network.restrict(name, policy)
        else:
            await self.own.restrict(name, policy)

    def open_socket(self, name: str) -> asyncio.Future[socket.socket]:
        """An unconnected, non-blocking TCP socket in its namespace. Raises FailedPrecondition, OSError."""
        if self.guests is not None and (network := self.guests.of_container(name)) is not None:
            return self.guests.open_socket(network.attached[name])
        return self.own.open_socket(name)

    def resolv_conf(self, attachment: Attachment, servers: Sequence[str], *, tenant: str) -> str:
        """The /etc/resolv.conf of a container in the namespace `tenant` of this cloud; a guest's has names of
        its buyer's."""
        network = None if self.guests is None else self.guests.of_container(attachment.owner)
        if network is not None and not servers:
            return network.resolv_conf(attachment)
        return self.own.resolv_conf(attachment, servers, tenant=tenant)

    async def keep_only(self, names: set[str]) -> None:
        """Detach all others. Raises Unavailable."""
        if self.guests is None:
            await self.own.keep_only(names)
            return
        for network in self.guests.all():
            for owner in network.attached.keys() - names:
                await network.detach(owner)
        await self.own.keep_only(names | self.guests.uplinks)
