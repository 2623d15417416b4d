"""Agents of simulated nodes: their connections to the servers, and one loop that drives all nodes.

A connection has the faults of a network: it delays messages, breaks before or after one arrived, and the
server may notice that much later. A node whose connection broke dials any server again, and sends all reports
that were not acknowledged. An idle node costs one task, which waits for orders: heartbeats and timers of all
nodes are in one loop.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, cast

from skerry.control.sessions.node_session import NodeSession
from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.node_messages import OrderUpdate, ReportAck, ReportBatch, ServerMessage, SessionClose
from skerry.model.orders import InstanceReport
from skerry.node.agent.agent import BACKOFF
from skerry.sim.cluster.fault_schedule import FaultSchedule
from skerry.sim.cluster.node import SimulatedNode
from skerry.sim.cluster.server import SimulatedServer

_MAX_REPORTS = 500  # in one batch
_LINGER_S = 40.0  # until a server notices, at the latest, that a connection is broken
_LATE_S = 10.0  # how long after the end of its connection a batch may arrive


class _ConnectionBroken(Exception):
    """The connection broke."""


@dataclass(slots=True, eq=False)
class SimulatedConnection:
    """One connection, until it breaks."""

    server: SimulatedServer
    session: NodeSession
    task: asyncio.Task[None]
    sequence: int = 0  # of the last batch
    sent: int = 0  # the number of the last report in it
    unacknowledged: deque[tuple[int, int]] = field(default_factory=deque)  # batches, the last report in each
    is_sending: bool = False
    is_broken: bool = False
    lingers: bool = False  # the server has not noticed


@dataclass(slots=True, eq=False)
class SimulatedAgent:
    """A node and its connection to a server."""

    machine: SimulatedNode
    connection: SimulatedConnection | None = None
    is_dialling: bool = False
    is_cut: bool = False  # until `reconnect`
    failures: int = 0


class AgentDriver:
    """All nodes. `servers` are those that can be dialled now."""

    def __init__(
        self, clock: Clock, faults: FaultSchedule, servers: Callable[[], Sequence[SimulatedServer]]
    ) -> None:
        self._clock = clock
        self._faults = faults
        self._servers = servers
        self._links: dict[NodeId, SimulatedAgent] = {}
        self._wake_times: list[tuple[float, NodeId]] = []  # a heap: when a machine has something to do
        self._dials: list[tuple[float, NodeId]] = []  # a heap: when a node dials
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[SimulatedAgent]:
        return iter(self._links.values())

    def __len__(self) -> int:
        return len(self._links)

    def __getitem__(self, node: NodeId) -> SimulatedAgent:
        return self._links[node]

    def get(self, node: NodeId) -> SimulatedAgent | None:
        return self._links.get(node)

    def add(self, machine: SimulatedNode) -> None:
        """Another node, which dials at once."""
        link = self._links[machine.id] = SimulatedAgent(machine)
        self._dial(link, self._clock.now())

    def cut(self, node: NodeId, *, silently: bool) -> None:
        """Disconnect a node until `reconnect`; if `silently`, the server does not notice at once."""
        link = self._links[node]
        link.is_cut = True
        self._break(link, silently=silently)

    def reconnect(self, node: NodeId) -> None:
        link = self._links[node]
        if link.is_cut:
            link.is_cut = False
            self._dial(link, self._clock.now())

    def leave(self, server: SimulatedServer) -> None:
        """Break all connections to a server."""
        for link in self._links.values():
            if link.connection is not None and link.connection.server is server:
                self._break(link, silently=False)

    def node_changed(self, link: SimulatedAgent) -> None:
        """The state of a machine changed: schedule its next action, and send its reports."""
        if (at := link.machine.wakes_at) is not None:
            heapq.heappush(self._wake_times, (at, link.machine.id))
            self._wake.set()
        connection = link.connection
        if (
            connection is not None
            and not connection.is_sending
            and link.machine.pending_reports(connection.sent, 1)
        ):
            connection.is_sending = True
            self._spawn(self._send(link, connection))

    async def run(self) -> None:
        """Drive all nodes, for ever."""
        heartbeats = asyncio.ensure_future(self._send_heartbeats())
        try:
            while True:
                self._wake.clear()
                self._act(self._clock.now())
                times = [heap[0][0] for heap in (self._wake_times, self._dials) if heap]
                wait_s = max(0.0, min(times) - self._clock.now()) if times else None
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
        finally:
            await cancel_and_wait([heartbeats, *self._tasks])

    def _act(self, now: float) -> None:
        while self._dials and self._dials[0][0] <= now:
            link = self._links[heapq.heappop(self._dials)[1]]
            if link.connection is None and not link.is_dialling and not link.is_cut:
                link.is_dialling = True
                self._spawn(self._connect(link))
        while self._wake_times and self._wake_times[0][0] <= now:
            at, node = heapq.heappop(self._wake_times)
            link = self._links[node]
            if at == link.machine.wakes_at:
                link.machine.act(now)
                self.node_changed(link)

    async def _send_heartbeats(self) -> None:
        while True:
            connections = [link.connection for link in self._links.values() if link.connection is not None]
            for connection in connections:
                connection.server.sessions.received(connection.session)
            report_s = min((one.session.config.report_s for one in connections), default=0.5)
            await asyncio.sleep(report_s)

    def _dial(self, link: SimulatedAgent, at: float) -> None:
        heapq.heappush(self._dials, (at, link.machine.id))
        self._wake.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _break(self, link: SimulatedAgent, *, silently: bool) -> None:
        """Break the connection; the node dials again when it may."""
        connection, link.connection = link.connection, None
        if connection is not None:
            connection.is_broken, connection.lingers = True, silently
            connection.task.cancel()
            self._redial(link)

    def _redial(self, link: SimulatedAgent) -> None:
        if not link.is_cut:
            self._dial(link, self._clock.now() + BACKOFF.delay(link.failures, self._faults.chance.random))
            link.failures += 1

    async def _connect(self, link: SimulatedAgent) -> None:
        """One connection, from dialling to its end."""
        servers = self._servers()
        if not servers:
            link.is_dialling = False
            self._redial(link)
            return
        server, machine = self._faults.chance.choice(servers), link.machine
        async with AsyncExitStack() as stack:
            try:
                await self._travel()
                entering = stack.enter_async_context(server.sessions.connect(machine.id, machine.hello))
                session = await server.serve(entering)
            except errors.SkerryError:
                self._redial(link)
                return
            finally:
                link.is_dialling = False
            task = asyncio.current_task()
            assert task is not None, "this runs in a task"
            connection = link.connection = SimulatedConnection(server, session, task)
            if link.is_cut:  # while it dialled
                self._break(link, silently=True)
            link.failures, machine.config = 0, session.config
            connection.is_sending = True
            self._spawn(self._send(link, connection, is_first=True))
            await self._listen(link, connection)

    async def _listen(self, link: SimulatedAgent, connection: SimulatedConnection) -> None:
        """Handle messages until the connection breaks; the server may keep it open for a while."""
        try:
            messages = cast("AsyncGenerator[ServerMessage]", connection.session.messages())
            async with aclosing(messages):
                async for message in messages:
                    await self._travel()
                    self._handle(link, connection, message)
        except _ConnectionBroken:
            self._drop(link, connection)
        except asyncio.CancelledError:
            if not connection.is_broken:
                raise  # the simulation ends
            connection.task.uncancel()
        if connection.lingers:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._faults.delay(_LINGER_S)):
                    await connection.session.ended()

    def _handle(self, link: SimulatedAgent, connection: SimulatedConnection, message: ServerMessage) -> None:
        if connection.is_broken or self._faults.happens(self._faults.breaks / 2):
            raise _ConnectionBroken
        now, machine = self._clock.now(), link.machine
        match message:
            case OrderUpdate():
                machine.take(message.orders, now, is_full=message.is_full, removed=message.removed)
            case ReportAck():
                while connection.unacknowledged and connection.unacknowledged[0][0] <= message.sequence:
                    machine.acknowledge(connection.unacknowledged.popleft()[1], now)
            case SessionClose():
                raise _ConnectionBroken
            case _:
                pass  # simulated nodes have no tunnels
        self.node_changed(link)
        if self._faults.happens(self._faults.breaks / 2):
            raise _ConnectionBroken

    def _drop(self, link: SimulatedAgent, connection: SimulatedConnection) -> None:
        """The connection broke by a fault."""
        if link.connection is connection:
            link.connection = None
            connection.is_broken = True
            connection.lingers = self._faults.happens(0.5)
            self._redial(link)

    async def _send(
        self, link: SimulatedAgent, connection: SimulatedConnection, *, is_first: bool = False
    ) -> None:
        """Send all reports that were not acknowledged; on a new connection, then the status of everything."""
        machine = link.machine
        try:
            while pending := machine.pending_reports(connection.sent, _MAX_REPORTS):
                connection.sent = pending[-1].number
                await self._report(connection, [one.report for one in pending])
            if is_first:
                await self._report(connection, machine.inventory())
        except (_ConnectionBroken, errors.SkerryError):
            if link.connection is connection:
                self._break(link, silently=self._faults.happens(0.5))
        finally:
            connection.is_sending = False
        self.node_changed(link)

    async def _report(self, connection: SimulatedConnection, reports: Sequence[InstanceReport]) -> None:
        connection.sequence += 1
        connection.unacknowledged.append((connection.sequence, connection.sent))
        batch = ReportBatch(connection.sequence, tuple(reports))
        await self._travel()
        if connection.is_broken or self._faults.happens(self._faults.breaks / 2):
            if self._faults.happens(self._faults.late):
                self._spawn(self._arrive_late(connection, batch))
            raise _ConnectionBroken
        await connection.server.serve(connection.server.sessions.reported(connection.session, batch))
        connection.server.sessions.received(connection.session)
        if self._faults.happens(self._faults.breaks / 2):
            raise _ConnectionBroken

    async def _arrive_late(self, connection: SimulatedConnection, batch: ReportBatch) -> None:
        """Deliver a batch after its connection broke, if the server still has it open."""
        await asyncio.sleep(self._faults.delay(_LATE_S))
        if not connection.session.is_over:
            with suppress(errors.SkerryError):
                await connection.server.serve(connection.server.sessions.reported(connection.session, batch))

    async def _travel(self) -> None:
        if delay_s := self._faults.delay(self._faults.message_delay_s):
            await asyncio.sleep(delay_s)
