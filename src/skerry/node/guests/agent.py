"""The guest agent: the node that the buyer of a leased cell gets.

It drives its instances with the same code as this node's own (`skerry.node.agent.instances`), as containers
inside the cell, and speaks the node protocol (`skerry.node.agent.session`) over a tunnel with the buyer as
its control plane. `policy` limits what it may run; `leased_cells` owns the cell.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
from msgspec.structs import replace

from skerry.kit.clock import Clock
from skerry.kit.tasks import TaskSupervisor, cancel_and_wait
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.ids import InstanceId
from skerry.model.node_messages import NodeHello, SessionConfig, TunnelRequest
from skerry.model.streams import TunnelStream
from skerry.node.agent import agent
from skerry.node.agent.instances.backends import ImagePuller, InstanceBackends
from skerry.node.agent.instances.instances import InstancePolicy, NodeInstances
from skerry.node.agent.instances.tunnel_handler import TunnelHandler
from skerry.node.agent.ports import ControlConnection
from skerry.node.agent.session import AgentHooks, AgentSession
from skerry.node.containers.containers import Containers
from skerry.node.guest_networks.networks import GuestNetworks
from skerry.node.guests import policy
from skerry.node.guests.network_feed import GuestNetworkFeed
from skerry.node.guests.policy import LeasedCapacity
from skerry.node.health.monitor import CheckLimits

log = structlog.get_logger(__name__)

# Starts and checks cost processor time outside the cell.
_STARTS_AT_ONCE = 2
_CHECK_LIMITS = CheckLimits(probes_at_once=8, execs_at_once=1, per_second=50.0)
_MAX_TUNNELS = 16  # logs and execs at once, to leave some for others
_PACE_S = 0.01  # between two messages of the buyer
_REPLACED = "a newer session of this leased cell has replaced this one"
_CLOSED = "this leased cell is closed: its lease ended, or its node stops"


class GuestAgent:
    """The guest agent of one leased cell; created by `open`."""

    def __init__(
        self,
        cell: str,
        leased: LeasedCapacity,
        instances: NodeInstances,
        tunnels: TunnelHandler,
        clock: Clock,
    ) -> None:
        self.cell = cell
        self.leased = leased
        self._instances = instances
        self._tunnels = tunnels
        self._clock = clock
        self._loops = TaskSupervisor(f"guest of {cell}", clock=clock)
        self._newest: object = None  # the newest session that was requested
        self._talking: asyncio.Future[None] | None = None
        self._open_tunnels = 0
        self._is_leaving = False
        self._networks: GuestNetworks | None = None

    @classmethod
    async def open(
        cls,
        folder: Path,
        cell: str,
        leased: LeasedCapacity,
        containers: Containers,
        images: ImagePuller,
        clock: Clock,
        *,
        most: int,
    ) -> GuestAgent:
        """Resume the instances in `folder`, inside `cell`; at most `most` of them."""
        limits = InstancePolicy(policy.translation(cell, leased), most, _STARTS_AT_ONCE, _CHECK_LIMITS)
        instances = await NodeInstances(folder, InstanceBackends(containers, images), clock, limits).open()
        guest = cls(cell, leased, instances, TunnelHandler(instances, containers), clock)
        guest._networks = containers.guest_networks
        await guest._loops.__aenter__()
        guest._loops.forever("usage", instances.run)
        return guest

    async def run_session(self, connection: ControlConnection, instance: InstanceId) -> None:
        """Serve as the node `instance` until the session ends; raises the reason.

        There is one session at a time, and the newest wins: the previous one may belong to a client that is
        gone.
        """
        request = self._newest = object()
        await self._close_session()
        if self._newest is not request or self._is_leaving:
            raise self._closed_error()
        talking = self._talking = asyncio.ensure_future(self._run_session(connection, instance))
        try:
            await asyncio.wait([talking])
        finally:
            await cancel_and_wait([talking])
            if self._talking is talking:
                self._talking = None
        if talking.cancelled():
            raise self._closed_error()
        talking.result()

    async def _run_session(self, connection: ControlConnection, instance: InstanceId) -> None:
        network = GuestNetworkFeed()
        hooks = AgentHooks(
            partial(self._describe, instance),
            lambda: "\n".join(self._warnings()),
            network=network if self._may_join else None,
        )
        session = AgentSession(connection, self._instances, hooks, self._clock, pace_s=_PACE_S)
        try:
            config = policy.clamp_session_config(await session.open())
            await self._join_network(config, network)
            await self._instances.set_config(config)
            log.info("guest.welcomed", cell=self.cell, node=config.node)
            await session.run(config)
        except OSError as error:  # of this node's disk
            raise errors.Unavailable(
                f"the node cannot store the state of its guest: {error.strerror}", detail=repr(error)
            ) from error

    def _describe(self, instance: InstanceId) -> NodeHello:
        facts = agent.facts()
        more = (NodeFeature.NETWORK, NodeFeature.POLICIES) if self._may_join else ()
        facts = replace(
            facts,
            devices=self.leased.devices,
            features=(*facts.features, *more),
            warnings=self._warnings(),
        )
        return NodeHello(instance, facts, self.leased.resources)

    @property
    def _may_join(self) -> bool:
        return self._networks is not None and self._networks.is_allowed

    def _warnings(self) -> tuple[str, ...]:
        network = None if self._networks is None else self._networks.get(self.cell)
        return () if network is None or not network.is_joined else network.warnings

    async def _join_network(self, config: SessionConfig, feed: GuestNetworkFeed) -> None:
        """Have a network of the buyer's cloud, before the first order, if the buyer wants that; else have
        none from now on. Raises Unavailable, ResourcesExhausted, FailedPrecondition, Invalid."""
        if self._networks is None:
            return
        if not (config.joins_mesh and self._may_join):
            if (network := self._networks.get(self.cell)) is not None:
                await network.leave()
            return
        network = await self._networks.ensure(self.cell, policy.guest_node(config))
        feed.use(network)
        # Another process has missed changes: a new session sends everything.
        network.restarted = lambda: self._loops.once("new session", self._close_session())

    def _closed_error(self) -> errors.FailedPrecondition:
        return errors.FailedPrecondition(_CLOSED if self._is_leaving else _REPLACED)

    async def _close_session(self) -> None:
        if self._talking is not None:
            await cancel_and_wait([self._talking])

    async def handle(self, request: TunnelRequest, tunnel: TunnelStream) -> None:
        """Handle a tunnel to one of its instances. Raises the error to send."""
        if self._open_tunnels >= _MAX_TUNNELS:
            raise errors.Overloaded(
                f"{_MAX_TUNNELS} tunnels into this cell are open, which is the limit; close some"
            )
        self._open_tunnels += 1
        try:
            await self._tunnels.handle(request, tunnel)
        finally:
            self._open_tunnels -= 1

    async def leave(self, within_s: float) -> None:
        """Remove every instance and accept no more orders. Raises Unavailable after `within_s`, and can be
        repeated."""
        self._is_leaving = True
        await self._close_session()
        await self._instances.apply([], is_full=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._instances.emptied()
                return
        raise errors.Unavailable(
            f"instances in the leased cell {self.cell!r} could not be removed in time; it is tried again"
        )

    async def close(self) -> None:
        """Stop the agent; instances keep running while the cell exists."""
        self._is_leaving = True
        await self._close_session()
        await self._loops.stop()
        await self._instances.close()
