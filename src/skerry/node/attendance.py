"""What goes on over one connection with a control plane: hello, orders and tunnels down, reports up.

`skerry.node.session` attends the connections that this node dials, one after the other; `skerry.node.lent`
that of whoever borrows a cell. Neither how messages travel nor what follows the end of a connection is
decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

import structlog

from skerry.kit.clock import Clock
from skerry.kit.tasks import give_up
from skerry.model import errors
from skerry.model.orders import Report
from skerry.model.sessions import (
    Acknowledged,
    Down,
    Functions,
    Goodbye,
    Hello,
    Members,
    OpenTunnel,
    Orders,
    Reports,
    Servers,
    Welcome,
)
from skerry.node.connection import Connection, Tunnel
from skerry.node.instances.instances import NodeInstances

log = structlog.get_logger(__name__)

_MOST_REPORTS = 500  # in one batch
_MOST_BATCHES = 10_000  # that wait to be acknowledged
_WELCOME_S = 10.0  # one that takes longer may be frozen, and there may be another
_DESCRIBE_S = 60.0  # between two looks at what this machine has


class SentAway(errors.Unavailable):
    """The server said goodbye, as one does that stops."""


class MemberHere(Protocol):
    """What takes calls of functions on this node, and needs to know who else does, and which there are."""

    async def hear_members(self, told: Members) -> None: ...

    async def hear_functions(self, told: Functions) -> None: ...


async def _refuse_tunnel(wanted: OpenTunnel, tunnel: Tunnel) -> None:
    raise errors.Refused("there are no tunnels on this connection")


async def _pass_over(addresses: Sequence[str]) -> None:
    """For who has only this one way to its control plane."""


class Attendance:
    """What goes on over one connection."""

    def __init__(
        self,
        connection: Connection,
        instances: NodeInstances,
        describe: Callable[[], Hello],
        clock: Clock,
        *,
        serve: Callable[[OpenTunnel, Tunnel], Awaitable[None]] = _refuse_tunnel,
        learn: Callable[[Sequence[str]], Awaitable[None]] = _pass_over,
        member: MemberHere | None = None,
        pace_s: float = 0.0,
    ) -> None:
        """`serve` answers over a tunnel; `learn` is told where the servers are, `member` who takes calls and
        which functions there are. Messages that come quicker than every `pace_s` wait at the other end."""
        self._connection = connection
        self._instances = instances
        self._describe = describe
        self._clock = clock
        self._serve = serve
        self._learn = learn
        self._member = member
        self._pace_s = pace_s
        self.hello = describe()  # as the control plane knows it
        self._sequence = 0  # of the last batch
        self._sent = 0  # the number of the last report in it
        self._unacknowledged: deque[tuple[int, int]] = deque()  # batches, and the last report in each
        self._open: set[asyncio.Task[None]] = set()

    async def begin(self) -> Welcome:
        """Say hello; what the control plane welcomes us with. Raises what it has against us."""
        try:
            async with asyncio.timeout(_WELCOME_S):
                return await self._connection.hello(self.hello)
        except TimeoutError:
            raise errors.TimedOut("the control plane did not answer in time") from None

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
                    await self._learn(message.addresses)
                case Members() if self._member is not None:
                    await self._member.hear_members(message)
                case Functions() if self._member is not None:
                    await self._member.hear_functions(message)
                case Goodbye():
                    raise SentAway(f"the control plane sent this node away: {message.reason}")
            if self._pace_s:
                await asyncio.sleep(self._pace_s)
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
        if len(self._unacknowledged) >= _MOST_BATCHES:
            raise errors.Unavailable("the control plane acknowledges nothing that it is told")
        self._sequence += 1
        self._unacknowledged.append((self._sequence, self._sent))
        await self._connection.report(Reports(self._sequence, tuple(reports)))

    async def _describe_again(self) -> None:
        hello = self._describe()
        if hello != self.hello:
            self.hello = hello
            await self._connection.changed(hello)

    def _begin_tunnel(self, wanted: OpenTunnel) -> None:
        task = asyncio.create_task(self._serve_tunnel(wanted), name=f"tunnel to {wanted.instance}")
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve_tunnel(self, wanted: OpenTunnel) -> None:
        try:
            async with self._connection.tunnel(wanted.id) as tunnel:
                await self._serve(wanted, tunnel)
        except errors.SkerryError as error:  # who asked has gone; nobody is left to be told
            log.debug("tunnel.ended", instance=wanted.instance, error=error.message)
        except Exception as error:  # a fault of ours, which must not end the session
            log.error("tunnel.failed", instance=wanted.instance, error=repr(error), exc_info=error)
