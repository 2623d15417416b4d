"""The node's long conversation with the control plane: orders come down, reports go up, tunnels are dialled.

Always dialled by the node, and dialled again for ever: a control plane that is away costs nothing but news,
since `skerry.node.instances` goes on without it. What goes on over a connection is
`skerry.node.attendance`'s; how messages travel is the connection's (`skerry.node.connection`), which the
daemon hands in.
"""

from __future__ import annotations

import asyncio
import platform
import random
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import structlog

from skerry import __version__
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.members import Member
from skerry.model.nodes import Facts
from skerry.model.sessions import Hello, Welcome
from skerry.node import host
from skerry.node.attendance import Attendance, MemberHere, SentAway
from skerry.node.connection import Dialler
from skerry.node.instances.instances import NodeInstances
from skerry.node.instances.tunnels import Tunnels
from skerry.node.servers import KnownServers

log = structlog.get_logger(__name__)

# Never so long that a server which was away for hours takes us for lost before we have tried again.
BACKOFF = Backoff(first_s=0.5, cap_s=5.0, jitter=0.5)
_HEALTHY_S = 10.0  # a connection that held this long was a good one
_REJECTED = (errors.Unauthenticated, errors.Forbidden)
_JOIN_AGAIN = (
    "the control plane does not take this node's certificate; if that does not pass, make a join token there "
    "(`skerry token create --role node`) and start again: skerry node --join URL --token TOKEN"
)


def facts() -> Facts:
    """What kind of machine this is."""
    return Facts(host.architecture(), host.system(), platform.release(), __version__)


def introduce(
    name: str,
    data: Path,
    instances: NodeInstances,
    *,
    subnet: str,
    labels: Mapping[str, str],
    kept_mb: int = 0,
    member: Member | None = None,
) -> Hello:
    """This machine as it is now, with `data` as its data folder and `subnet` for its containers; `kept_mb` of
    its memory are for something else than instances, such as the functions that it takes calls of as
    `member`."""
    return Hello(
        name=name,
        facts=facts(),
        room=host.room(data, held_bytes=instances.disk_bytes, kept_mb=kept_mb),
        labels=dict(labels),
        subnet=subnet,
        member=member,
    )


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
        member: MemberHere | None = None,
        backoff: Backoff = BACKOFF,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`dial` makes the way to one of `servers`, any of which will do. `member` hears what those are told
        who take calls of functions."""
        self._servers = servers
        self._dial = dial
        self._instances = instances
        self._tunnels = tunnels
        self._describe = describe
        self._clock = clock
        self._member = member
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
        elif isinstance(error, SentAway):
            log.info("session.ended", server=server, reason=error.message)
        else:
            log.warning("session.lost", server=server, reason=error.message, detail=error.detail)

    async def _attend(self, server: str) -> None:
        """One connection, until it ends; raises why."""
        async with self._dial(server).dial() as connection:
            attendance = Attendance(
                connection,
                self._instances,
                self._describe,
                self._clock,
                serve=self._tunnels.serve,
                learn=self._servers.learn,
                member=self._member,
            )
            welcome = await attendance.begin()
            await self._welcomed(server, attendance.hello, welcome)
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
