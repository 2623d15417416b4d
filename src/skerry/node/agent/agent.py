"""Keeps the node connected to the control plane: receives orders, sends reports, opens tunnels.

The node always dials, and dials again for ever. While the control plane is unreachable instances keep running
(`skerry.node.agent.instances`). `skerry.node.agent.session` handles the messages of one connection; the
daemon passes in the transport (`skerry.node.agent.ports`).
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
from skerry.node.agent.session import WELCOME_S, AgentHooks, AgentSession, ServerClosedSession
from skerry.node.containers import init_programs

log = structlog.get_logger(__name__)

# The cap is short, so that a server which was down for hours hears this node before it counts as lost.
BACKOFF = Backoff(first_s=0.5, cap_s=3.5, jitter=0.5)
_HEALTHY_S = 10.0  # a connection that lasted this long resets the back-off
_MOST_PATIENCE = 2  # doublings of the time that a server gets to respond
_REJECTED = (errors.Unauthenticated, errors.Forbidden)
_JOIN_AGAIN = (
    "the control plane rejects this node's certificate; if that lasts, create an invitation "
    "there (`skerry token create --role node`) and start again: skerry node --join INVITATION"
)


def facts() -> NodeFacts:
    """Describe this machine: architecture, operating system, kernel, version, features."""
    has_init = init_programs.find() is not None
    features = [
        NodeFeature.OPTIONS,
        NodeFeature.FUNCTION_NAMESPACES,
        NodeFeature.WEB_FUNCTIONS,
        NodeFeature.DEVICES,
        NodeFeature.PREVIOUS_LOGS,
        *[NodeFeature.INIT] * has_init,
    ]
    return NodeFacts(
        host.architecture(),
        host.system(),
        platform.release(),
        __version__,
        runs_checks=True,
        features=tuple(features),
    )


def describe_node(
    hello: NodeHello,
    data: Path,
    disk_bytes: int,
    *,
    reserved_mb: int = 0,
    offers_disk: bool = True,
) -> NodeHello:
    """`hello` with the resources of this machine that instances and volumes may use, of whose disk they use
    `disk_bytes` now. `data` is the data folder; `reserved_mb` of memory are for other uses. `offers_disk` is
    False where disk usage cannot be limited; then the node offers no disk."""
    resources = host.usable_resources(data, used_bytes=disk_bytes, reserved_mb=reserved_mb)
    return replace(
        hello,
        resources=resources if offers_disk else replace(resources, disk=Gigabytes(0)),
        occupied=hello.occupied[:MAX_OCCUPIED],
        former=hello.former[:MAX_OCCUPIED],
        makes_claims=True,
    )


def welcome_timeout(rounds: int) -> float:
    """Seconds for a server to respond, after so many rounds in which none did. A server that a thousand nodes
    dial at once responds late, and never if all of them give up and begin again."""
    return WELCOME_S * 2.0 ** min(rounds, _MOST_PATIENCE)


class NodeAgent:
    """Keeps this node connected to its control plane."""

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
        """`dial` returns a dialer for one of `servers`; any of them will do."""
        self._servers = servers
        self._dial = dial
        self._instances = instances
        self._tunnels = tunnels
        self._hooks = hooks
        self._clock = clock
        self._backoff = backoff
        self._sleep = sleep
        self._last_error = ""  # the last error that was logged; cleared by a connection
        self.is_connected = False

    @property
    def last_error(self) -> str:
        """Why there is no connection; empty if there is one."""
        return self._last_error

    async def run(self) -> None:
        """Keep a session with any one of the servers. Runs for ever."""
        failures, lost = 0, ""
        while True:
            # Try the servers in order, the one that was lost last; the pause grows from round to round.
            servers = self._servers.by_preference(lost)
            rounds, position = divmod(failures, len(servers))
            began = self._clock.monotonic()
            try:
                await self._run_session(servers[position], welcome_timeout(rounds))
            except errors.SkerryError as error:
                self._log_failure(servers[position], error)
            except OSError as error:  # of this node's disk
                reason = f"this node cannot store its state: {error.strerror}"
                self._log_failure(servers[position], errors.Unavailable(reason))
            finally:
                self.is_connected = False
            if self._clock.monotonic() - began >= _HEALTHY_S:
                failures, rounds, lost = 0, 0, servers[position]
            else:
                failures += 1
            await self._sleep(self._backoff.delay(rounds))

    def _log_failure(self, server: str, error: errors.SkerryError) -> None:
        """Log why there is no connection, once per reason."""
        if error.message == self._last_error:
            return
        self._last_error = error.message
        if isinstance(error, _REJECTED):
            log.error("session.rejected", server=server, reason=error.message, hint=_JOIN_AGAIN)
        elif isinstance(error, ServerClosedSession):
            log.info("session.ended", server=server, reason=error.message)
        else:
            log.warning("session.lost", server=server, reason=error.message, detail=error.detail)

    async def _run_session(self, server: str, welcome_s: float) -> None:
        """Run one session until it ends. Raises the reason."""
        async with self._dial(server).dial() as connection:
            session = AgentSession(
                connection,
                self._instances,
                self._hooks,
                self._clock,
                serve=self._tunnels.serve,
                learn=self._servers.learn,
            )
            config = await session.open(welcome_s)
            await self._configured(server, session.hello, config)
            await session.run(config)

    async def _configured(self, server: str, hello: NodeHello, config: SessionConfig) -> None:
        await self._hooks.accepted()
        await self._hooks.assign(config.subnet)  # before the first order
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
