"""The node's long conversation with the control plane: orders come down, reports go up, tunnels are dialled.

Always dialled by the node, and dialled again for ever: a control plane that is away costs nothing but news,
since `skerry.node.agent.instances` goes on without it. What goes on over a connection is
`skerry.node.agent.session`'s; how messages travel is the connection's (`skerry.node.agent.ports`), which the
daemon hands in.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from msgspec.structs import replace

from skerry import __version__
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.node_messages import MAX_OCCUPIED, NodeHello, SessionConfig
from skerry.model.nodes import NodeFacts
from skerry.model.resources import Gigabytes
from skerry.node import host
from skerry.node.agent.instances.instances import NodeInstances
from skerry.node.agent.instances.tunnel_handler import TunnelHandler
from skerry.node.agent.ports import ControlDialer
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.node.agent.session import AgentHooks, AgentSession, ServerClosedSession
from skerry.node.containers import init_programs

log = structlog.get_logger(__name__)

# Never so long that a server which was away for hours takes us for lost before we have tried again.
BACKOFF = Backoff(first_s=0.5, cap_s=3.5, jitter=0.5)
_HEALTHY_S = 10.0  # a connection that held this long was a good one
_REJECTED = (errors.Unauthenticated, errors.Forbidden)
_JOIN_AGAIN = (
    "the control plane does not take this node's certificate; if that does not pass, make an invitation "
    "there (`skerry token create --role node`) and start again: skerry node --join INVITATION"
)


def facts() -> NodeFacts:
    """What kind of machine this is, as far as anybody may know."""
    has_init = init_programs.find() is not None
    return NodeFacts(
        host.architecture(),
        host.system(),
        platform.release(),
        __version__,
        runs_checks=True,
        features=(NodeFeature.OPTIONS, NodeFeature.INIT) if has_init else (NodeFeature.OPTIONS,),
    )


def describe_node(
    hello: NodeHello, data: Path, instances: NodeInstances, *, reserved_mb: int = 0, offers_disk: bool = True
) -> NodeHello:
    """`hello` with what this machine has now for instances, with `data` as its data folder; `reserved_mb` of
    its memory are for something else. Without `offers_disk` it has none to give: it cannot limit anybody to a
    part of it."""
    resources = host.usable_resources(data, used_bytes=instances.disk_bytes, reserved_mb=reserved_mb)
    return replace(
        hello,
        resources=resources if offers_disk else replace(resources, disk=Gigabytes(0)),
        occupied=hello.occupied[:MAX_OCCUPIED],
        former=hello.former[:MAX_OCCUPIED],
        makes_claims=True,
    )


class NodeAgent:
    """Keeps this node in touch with its control plane."""

    def __init__(
        self,
        servers: ServerAddressCache,
        dial: Callable[[str], ControlDialer],
        instances: NodeInstances,
        tunnels: TunnelHandler,
        hooks: AgentHooks,
        clock: Clock,
        *,
        backoff: Backoff = BACKOFF,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`dial` makes the way to one of `servers`, any of which will do."""
        self._servers = servers
        self._dial = dial
        self._instances = instances
        self._tunnels = tunnels
        self._hooks = hooks
        self._clock = clock
        self._backoff = backoff
        self._sleep = sleep
        self._last_error = ""  # the last that was logged, while it goes on
        self.is_connected = False

    @property
    def last_error(self) -> str:
        """Why there is no connection; empty if there is one."""
        return self._last_error

    async def run(self) -> None:
        """Be connected, to one server or another. For ever."""
        failures, lost = 0, ""
        while True:
            # In turn, the one that was lost last; pauses grow from round to round.
            servers = self._servers.by_preference(lost)
            rounds, turn = divmod(failures, len(servers))
            began = self._clock.monotonic()
            try:
                await self._run_session(servers[turn])
            except errors.SkerryError as error:
                self._log_failure(servers[turn], error)
            except OSError as error:  # of our own disk
                reason = f"this node cannot keep its state: {error.strerror}"
                self._log_failure(servers[turn], errors.Unavailable(reason))
            finally:
                self.is_connected = False
            if self._clock.monotonic() - began >= _HEALTHY_S:
                failures, rounds, lost = 0, 0, servers[turn]
            else:
                failures += 1
            await self._sleep(self._backoff.delay(rounds))

    def _log_failure(self, server: str, error: errors.SkerryError) -> None:
        """Log why there is no connection: once, and not again until there is another reason."""
        if error.message == self._last_error:
            return
        self._last_error = error.message
        if isinstance(error, _REJECTED):
            log.error("session.rejected", server=server, reason=error.message, hint=_JOIN_AGAIN)
        elif isinstance(error, ServerClosedSession):
            log.info("session.ended", server=server, reason=error.message)
        else:
            log.warning("session.lost", server=server, reason=error.message, detail=error.detail)

    async def _run_session(self, server: str) -> None:
        """One connection, until it ends; raises why."""
        async with self._dial(server).dial() as connection:
            session = AgentSession(
                connection,
                self._instances,
                self._hooks,
                self._clock,
                serve=self._tunnels.serve,
                learn=self._servers.learn,
            )
            config = await session.open()
            await self._configured(server, session.hello, config)
            await session.run(config)

    async def _configured(self, server: str, hello: NodeHello, config: SessionConfig) -> None:
        await self._hooks.assign(config.subnet)  # before anything is ordered
        await self._instances.set_config(config)
        self.is_connected, self._last_error = True, ""
        log.info("session.began", server=server, node=config.node, subnet=config.subnet)
        if hello.subnet and config.subnet != hello.subnet:
            log.warning(
                "session.other_subnet",
                wanted=hello.subnet,
                given=config.subnet,
                hint="new containers get addresses of the given one; those that run keep theirs",
            )
