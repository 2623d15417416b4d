"""A guest: the node that whoever borrows a cell finds in it.

Its instances are driven by the same code as this node's own (`skerry.node.agent.instances`), as containers
inside of the cell, and it speaks as any node does (`skerry.node.agent.session`): with the one who borrows as
its control plane, over a tunnel. What it may have is `policy`'s; the cell around it is `leased_cells`'.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import structlog

from skerry.kit.clock import Clock
from skerry.kit.tasks import TaskSupervisor, cancel_and_wait
from skerry.model import errors
from skerry.model.ids import InstanceId
from skerry.model.node_messages import NodeHello, TunnelRequest
from skerry.model.resources import Resources
from skerry.model.streams import TunnelStream
from skerry.node.agent import agent
from skerry.node.agent.instances.backends import ImagePuller, InstanceBackends
from skerry.node.agent.instances.instances import InstancePolicy, NodeInstances
from skerry.node.agent.instances.tunnel_handler import TunnelHandler
from skerry.node.agent.ports import ControlConnection
from skerry.node.agent.session import AgentHooks, AgentSession
from skerry.node.containers.containers import Containers
from skerry.node.guests import policy
from skerry.node.health.monitor import CheckLimits

log = structlog.get_logger(__name__)

# What these cost is not all the cell's.
_STARTS_AT_ONCE = 2
_CHECK_LIMITS = CheckLimits(probes_at_once=8, execs_at_once=1, per_second=50.0)
_MOST_TUNNELS = 16  # for output and programs at once; the node has no more than a few of these for all
_PACE_S = 0.01  # between two messages of the one who borrows
_TAKEN_OVER = "another conversation about this cell has taken the place of this one"
_TAKEN_BACK = "this cell is not open any more: it was taken back, or its node stops"


class GuestAgent:
    """One that is up; `open` makes it."""

    def __init__(
        self, cell: str, resources: Resources, instances: NodeInstances, tunnels: TunnelHandler, clock: Clock
    ) -> None:
        self.cell = cell
        self.resources = resources
        self._instances = instances
        self._tunnels = tunnels
        self._clock = clock
        self._loops = TaskSupervisor(f"guest of {cell}", clock=clock)
        self._newest: object = None  # of those who want to converse
        self._talking: asyncio.Future[None] | None = None
        self._asks = 0
        self._is_leaving = False

    @classmethod
    async def open(
        cls,
        folder: Path,
        cell: str,
        resources: Resources,
        containers: Containers,
        images: ImagePuller,
        clock: Clock,
        *,
        most: int,
    ) -> GuestAgent:
        """Go on with what is in `folder`, inside of `cell`; at most `most` instances."""
        held_to = InstancePolicy(policy.translation(cell, resources), most, _STARTS_AT_ONCE, _CHECK_LIMITS)
        instances = await NodeInstances(folder, InstanceBackends(containers, images), clock, held_to).open()
        guest = cls(cell, resources, instances, TunnelHandler(instances, containers), clock)
        await guest._loops.__aenter__()
        guest._loops.forever("usage", instances.run)
        return guest

    async def run_session(self, connection: ControlConnection, instance: InstanceId) -> None:
        """Be the node `instance` for who is at the other end, until that ends; raises why it did.

        There is one such conversation, and the newest wins: the one before may be with somebody long gone.
        """
        turn = self._newest = object()
        await self._hang_up()
        if self._newest is not turn or self._is_leaving:
            raise self._cut_short()
        talking = self._talking = asyncio.ensure_future(self._run_session(connection, instance))
        try:
            await asyncio.wait([talking])
        finally:
            await cancel_and_wait([talking])
            if self._talking is talking:
                self._talking = None
        if talking.cancelled():
            raise self._cut_short()
        talking.result()

    async def _run_session(self, connection: ControlConnection, instance: InstanceId) -> None:
        hello = NodeHello(instance, agent.facts(), self.resources)
        session = AgentSession(
            connection, self._instances, AgentHooks(lambda: hello), self._clock, pace_s=_PACE_S
        )
        try:
            config = policy.clamp_session_config(await session.open())
            await self._instances.set_config(config)
            log.info("guest.welcomed", cell=self.cell, node=config.node)
            await session.run(config)
        except OSError as error:  # of our own disk
            raise errors.Unavailable(
                f"the node cannot keep the state of its guest: {error.strerror}", detail=repr(error)
            ) from error

    def _cut_short(self) -> errors.FailedPrecondition:
        return errors.FailedPrecondition(_TAKEN_BACK if self._is_leaving else _TAKEN_OVER)

    async def _hang_up(self) -> None:
        if self._talking is not None:
            await cancel_and_wait([self._talking])

    async def answer(self, wanted: TunnelRequest, tunnel: TunnelStream) -> None:
        """What is asked of one of its instances. Raises what is wrong with it."""
        if self._asks >= _MOST_TUNNELS:
            raise errors.Overloaded(
                f"{_MOST_TUNNELS} tunnels into this cell are open, and it may have no more; close some"
            )
        self._asks += 1
        try:
            await self._tunnels.answer(wanted, tunnel)
        finally:
            self._asks -= 1

    async def leave(self, within_s: float) -> None:
        """Every instance of it goes, and it takes no more orders. Raises Unavailable if that takes longer,
        and can be repeated."""
        self._is_leaving = True
        await self._hang_up()
        await self._instances.apply([], is_full=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._instances.emptied()
                return
        raise errors.Unavailable(
            f"what runs in the lent cell {self.cell!r} does not go away; it is tried again"
        )

    async def close(self) -> None:
        """The agent ends, or the cell does; what runs goes on as long as it can."""
        self._is_leaving = True
        await self._hang_up()
        await self._loops.stop()
        await self._instances.close()
