"""Keeps the rules of network policies up to date with the network objects of this node.

Addresses of other nodes' containers, and which namespaces an isolated one allows, come from a server as
network objects. Without a server the last ones hold. What an instance itself may do is part of its order
(`skerry.node.agent.instances`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Protocol

import structlog

from skerry.model import errors
from skerry.model.network_objects import InstanceAddress, NetworkObject, NodeLocation, ServiceAddress
from skerry.model.network_policies import IsolatedNamespace, JobAddress
from skerry.node.agent.network_state import NetworkState
from skerry.node.network.cloud_network import compile_cloud
from skerry.node.network.policy_rules import CloudNetwork

log = structlog.get_logger(__name__)

KINDS: tuple[type[NetworkObject], ...] = (
    NodeLocation,
    ServiceAddress,
    InstanceAddress,
    JobAddress,
    IsolatedNamespace,
)
_AGAIN_AFTER_S = 5.0  # a failure


class PolicyNetwork(Protocol):
    """The network that has the rules."""

    @property
    def networks(self) -> tuple[IPv4Network, ...]: ...

    async def follow_cloud(self, cloud: CloudNetwork) -> None: ...


def cloud_of(state: NetworkState, own: tuple[IPv4Network, ...]) -> CloudNetwork:
    """What the state says, for a node with the subnets `own`."""
    return compile_cloud(
        own,
        state.all(NodeLocation).values(),
        state.all(ServiceAddress).values(),
        [*state.all(InstanceAddress).values(), *state.all(JobAddress).values()],
        state.all(IsolatedNamespace).values(),
    )


class NetworkPolicyFollower:
    """Applies what network objects say to the rules of `network`."""

    def __init__(self, state: NetworkState, network: PolicyNetwork) -> None:
        self._state = state
        self._network = network
        self._changed = asyncio.Event()
        self._applied: CloudNetwork | None = None
        for kind in KINDS:
            state.subscribe(kind, self._note)

    def _note(self, _: Mapping[str, NetworkObject]) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Apply changes as they come, for ever; those that come meanwhile together."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.apply()
            except errors.Unavailable as error:
                log.warning("network.policies_not_applied", error=error.message, detail=error.detail)
                await asyncio.sleep(_AGAIN_AFTER_S)
                self._changed.set()

    async def apply(self) -> None:
        """Apply what is known now. Raises Unavailable."""
        cloud = cloud_of(self._state, self._network.networks)
        if cloud != self._applied:
            await self._network.follow_cloud(cloud)
            self._applied = cloud
