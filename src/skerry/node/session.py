"""The node's long conversation with the control plane: orders come down, reports go up, tunnels are dialled.

Always dialled by the node, and dialled again for ever: a control plane that is away costs nothing but news,
since `skerry.node.instances` goes on without it. How messages travel is the connection's
(`skerry.node.connection`), which the daemon hands in.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import structlog

from skerry import __version__
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import give_up
from skerry.model import errors
from skerry.model.nodes import Facts
from skerry.model.orders import Report
from skerry.model.sessions import (
    Acknowledged,
    Down,
    Goodbye,
    Hello,
    OpenTunnel,
    Orders,
    Reports,
    Servers,
    Welcome,
)
from skerry.node import host
from skerry.node.connection import Connection, Dialler
from skerry.node.instances.instances import NodeInstances
from skerry.node.instances.tunnels import Tunnels
from skerry.node.servers import KnownServers

log = structlog.get_logger(__name__)

BACKOFF = Backoff(first_s=0.5, cap_s=30.0, jitter=0.5)
_MOST_REPORTS = 500  # in one batch
_WELCOME_S = 10.0  # one that takes longer may be frozen, and there may be another
_HEALTHY_S = 10.0  # a connection that held this long was a good one
_DESCRIBE_S = 60.0  # between two looks at what this machine has
_REJECTED = (errors.Unauthenticated, errors.Forbidden)
_JOIN_AGAIN = (
    "the control plane does not take this node's certificate; if that does not pass, make a join token there "
    "(`skerry token create --role node`) and start again: skerry node --join URL --token TOKEN"
)


def introduce(
    name: str,
    data: Path,
    instances: NodeInstances,
    *,
    subnet: str,
    labels: Mapping[str, str],
    kept_mb: int = 0,
) -> Hello:
    """This machine as it is now, with `data` as its data folder and `subnet` for its containers; `kept_mb` of
    its memory are for something else than instances."""
    return Hello(
        name=name,
        facts=Facts(host.architecture(), host.system(), platform.release(), __version__),
        room=host.room(data, held_bytes=instances.disk_bytes, kept_mb=kept_mb),
        labels=dict(labels),
        subnet=subnet,
    )


class _SentAway(errors.Unavailable):
    """The server said goodbye, as one does that stops."""


class Session:
    """Keeps this node in touch with its control plane."""

    def __init__(
        self,
        servers: KnownServers,
        dial: Callable[[str], Dialler],
        instances: NodeInstances,
        tunnels: Tunnels,
        describe: Callable[[], Hello],
        clock: Clock,
        *,
        backoff: Backoff = BACKOFF,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`dial` makes the way to one of `servers`, any of which will do."""
        self._servers = servers
        self._dial = dial
        self._instances = instances
        self._tunnels = tunnels
        self._describe = describe
        self._clock = clock
        self._backoff = backoff
        self._sleep = sleep
        self._chance = chance
        self._complaint = ""  # the last that was logged, while it goes on
        self.is_connected = False

    async def run(self) -> None:
        """Be connected, to one server or another. For ever."""
        failures, lost = 0, ""
        while True:
            # In turn, the one that was lost last; pauses grow from round to round.
            servers = sorted(self._servers.addresses, key=lambda address: address == lost)
            rounds, turn = divmod(failures, len(servers))
            began = self._clock.monotonic()
            try:
                await self._attend(servers[turn])
            except errors.SkerryError as error:
                self._complain(servers[turn], error)
            except OSError as error:  # of our own disk
                reason = f"this node cannot keep its state: {error.strerror}"
                self._complain(servers[turn], errors.Unavailable(reason))
            finally:
                self.is_connected = False
            if self._clock.monotonic() - began >= _HEALTHY_S:
                failures, rounds, lost = 0, 0, servers[turn]
            else:
                failures += 1
            await self._sleep(self._backoff.delay(rounds, self._chance))

    def _complain(self, server: str, error: errors.SkerryError) -> None:
        """Log why there is no connection: once, and not again until there is another reason."""
        if error.message == self._complaint:
            return
        self._complaint = error.message
        if isinstance(error, _REJECTED):
            log.error("session.rejected", server=server, reason=error.message, hint=_JOIN_AGAIN)
        elif isinstance(error, _SentAway):
            log.info("session.ended", server=server, reason=error.message)
        else:
            log.warning("session.lost", server=server, reason=error.message, detail=error.detail)

    async def _attend(self, server: str) -> None:
        """One connection, until it ends; raises why."""
        async with self._dial(server).dial() as connection:
            hello = self._describe()
            try:
                async with asyncio.timeout(_WELCOME_S):
                    welcome = await connection.hello(hello)
            except TimeoutError:
                raise errors.TimedOut("the control plane did not answer in time") from None
            await self._welcomed(server, hello, welcome)
            attendance = _Attendance(
                connection,
                self._servers,
                self._instances,
                self._tunnels,
                self._describe,
                self._clock,
                hello=hello,
            )
            await attendance.last(welcome)

    async def _welcomed(self, server: str, hello: Hello, welcome: Welcome) -> None:
        await self._instances.hold_to(welcome)
        self.is_connected, self._complaint = True, ""
        log.info("session.began", server=server, node=welcome.node, subnet=welcome.subnet)
        if hello.subnet and welcome.subnet != hello.subnet:
            log.warning(
                "session.other_subnet",
                here=hello.subnet,
                given=welcome.subnet,
                hint="it is used when this node is started again with no container attached",
            )


class _Attendance:
    """What goes on over one connection."""

    def __init__(
        self,
        connection: Connection,
        servers: KnownServers,
        instances: NodeInstances,
        tunnels: Tunnels,
        describe: Callable[[], Hello],
        clock: Clock,
        *,
        hello: Hello,
    ) -> None:
        self._connection = connection
        self._servers = servers
        self._instances = instances
        self._tunnels = tunnels
        self._describe = describe
        self._clock = clock
        self._hello = hello  # as the control plane knows it
        self._sequence = 0  # of the last batch
        self._sent = 0  # the number of the last report in it
        self._unacknowledged: deque[tuple[int, int]] = deque()  # batches, and the last report in each
        self._open: set[asyncio.Task[None]] = set()

    async def last(self, terms: Welcome) -> None:
        """Until the connection ends, or the server falls silent; raises why."""
        both = [
            asyncio.ensure_future(self._listen(terms.silence_s)),
            asyncio.ensure_future(self._talk(terms.report_s)),
        ]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await give_up([*both, *self._open])

    async def _listen(self, silence_s: float) -> None:
        messages = self._connection.messages()
        while (message := await self._next_of(messages, silence_s)) is not None:
            match message:
                case Orders():
                    await self._instances.apply(message.orders, is_whole=message.is_whole, gone=message.gone)
                case Acknowledged():
                    self._acknowledge(message.sequence)
                case OpenTunnel():
                    self._begin_tunnel(message)
                case Servers():
                    await self._servers.learn(message.addresses)
                case Goodbye():
                    raise _SentAway(f"the control plane sent this node away: {message.reason}")
        raise errors.Unavailable("the control plane ended the session")

    async def _next_of(self, messages: AsyncIterator[Down], silence_s: float) -> Down | None:
        """What the server says next; None if that is nothing more. One that froze keeps its connections."""
        try:
            async with asyncio.timeout(silence_s or None):
                return await anext(messages, None)
        except TimeoutError:
            raise errors.TimedOut(f"the control plane was silent for {silence_s:g} s") from None

    def _acknowledge(self, sequence: int) -> None:
        while self._unacknowledged and self._unacknowledged[0][0] <= sequence:
            _, number = self._unacknowledged.popleft()
            self._instances.acknowledge(number)

    async def _talk(self, report_s: float) -> None:
        # First all that was not acknowledged, in order; then what everything is now: whatever the control
        # plane made of our silence, it is right again after that.
        await self._tell_news()
        await self._tell(self._instances.inventory())
        spoke_at = described_at = self._clock.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, spoke_at + report_s - self._clock.monotonic())):
                    await self._instances.news()
            now = self._clock.monotonic()
            has_spoken = await self._tell_news()
            if now < spoke_at + report_s:
                continue
            if now >= described_at + _DESCRIBE_S:
                described_at = now
                await self._describe_again()
            # The rest can wait for its turn, and is told together.
            has_spoken |= await self._tell(self._instances.take_usage())
            if not has_spoken:
                await self._connection.heartbeat()
            spoke_at = now

    async def _tell_news(self) -> bool:
        has_spoken = False
        while news := self._instances.reports(self._sent, _MOST_REPORTS):
            self._sent = news[-1].number
            await self._send([told.report for told in news])
            has_spoken = True
        return has_spoken

    async def _tell(self, reports: Sequence[Report]) -> bool:
        for at in range(0, len(reports), _MOST_REPORTS):
            await self._send(reports[at : at + _MOST_REPORTS])
        return bool(reports)

    async def _send(self, reports: Sequence[Report]) -> None:
        self._sequence += 1
        self._unacknowledged.append((self._sequence, self._sent))
        await self._connection.report(Reports(self._sequence, tuple(reports)))

    async def _describe_again(self) -> None:
        hello = self._describe()
        if hello != self._hello:
            self._hello = hello
            await self._connection.changed(hello)

    def _begin_tunnel(self, wanted: OpenTunnel) -> None:
        task = asyncio.create_task(self._serve_tunnel(wanted), name=f"tunnel to {wanted.instance}")
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve_tunnel(self, wanted: OpenTunnel) -> None:
        try:
            async with self._connection.tunnel(wanted.id) as tunnel:
                await self._tunnels.serve(wanted, tunnel)
        except errors.SkerryError as error:  # who asked has gone; nobody is left to be told
            log.debug("tunnel.ended", instance=wanted.instance, error=error.message)
        except Exception as error:  # a fault of ours, which must not end the session
            log.error("tunnel.failed", instance=wanted.instance, error=repr(error), exc_info=error)
