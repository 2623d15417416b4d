"""The links of one process to other members: dialled when they are needed, kept, and dialled again.

Implements `skerry.functions.continuum.member_api.MemberClient` and `ReplicationClient`. There is one link per
member: all requests during dialling wait for the same attempt. After a failure calls fail at once until the
back-off is over; pings and requests for code always try, so that a member that is back is found by the next
one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from typing import Final

import structlog

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum.member_api import (
    BeforeStart,
    CallNotStarted,
    CallOutcomeUnknown,
    CodeList,
    ContinuumMember,
    ForwardedCall,
    FunctionCalls,
    MemberLoad,
    ResultCopy,
)
from skerry.kit import metrics, tasks, tls
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.callers import NODE_TLS_NAME
from skerry.model.calls import CallReport
from skerry.model.ids import Digest, NodeId
from skerry.model.settings import FunctionSettings
from skerry.transport.links.members import framing
from skerry.transport.links.members.client_link import ClientLink, ClientLinkDeps
from skerry.transport.links.members.link_identity import LinkAccess

log = structlog.get_logger(__name__)

_BACKOFF: Final = Backoff(first_s=0.1, cap_s=5.0)
_SHUTDOWN_S: Final = 1.0  # for the peer's half of a TLS goodbye

_CALLS = metrics.counter("skerry_far_calls_total", "Calls handed to neighbours", ["outcome"])
_DONE, _NOT_STARTED, _MAY_HAVE_RUN = map(_CALLS.labels, ("done", "not_started", "may_have_run"))


class _MemberRoute:
    """How a member is reached."""

    __slots__ = ("dialling", "failures", "link", "member", "reason", "retry_at")

    def __init__(self, member: ContinuumMember) -> None:
        self.member = member
        self.link: ClientLink | None = None
        self.dialling: asyncio.Task[None] | None = None
        self.failures = 0
        self.retry_at = 0.0
        self.reason = ""


class LinkPool:
    """`context` has this member's certificate and trusts the cloud's CA. `close` it last.

    Links end as soon as `access` reports that their members were revoked.
    """

    def __init__(
        self,
        here: NodeId,
        context: ssl.SSLContext,
        clock: Clock,
        settings: FunctionSettings,
        *,
        timeout_s: float,
        access: LinkAccess,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self._context = context
        self._clock = clock
        self._backoff = backoff
        self._timeout_s = timeout_s
        self._deps = ClientLinkDeps(
            here, clock, access, timeout_s, framing.max_frame_bytes(settings), settings.max_code_bytes
        )
        self._routes: dict[NodeId, _MemberRoute] = {}
        self._links: set[ClientLink] = set()  # also those that are being dialled, and those that end
        self._is_closed = False
        access.listen(self._check_access)

    async def invoke(
        self,
        member: ContinuumMember,
        call: ForwardedCall,
        *,
        at_once: bool,
        begins: BeforeStart | None = None,
    ) -> CallReport:
        try:
            try:
                link = self._open_link(member) or await self._link_to(member)
            except errors.Unavailable as error:
                raise CallNotStarted(error.message) from None
            report = await link.invoke(call, at_once=at_once, begins=begins)
        except CallNotStarted:
            _NOT_STARTED.inc()
            raise
        except CallOutcomeUnknown:
            _MAY_HAVE_RUN.inc()
            raise
        _DONE.inc()
        return report

    async def ping(self, member: ContinuumMember, mine: MemberLoad) -> tuple[MemberLoad, float]:
        link = self._open_link(member) or await self._link_to(member, despite_backoff=True)
        return await link.ping(mine)

    async def fetch(self, member: ContinuumMember, digest: Digest) -> bytes:
        link = self._open_link(member) or await self._link_to(member)
        return await link.fetch(digest)

    async def poll(self, member: ContinuumMember, id: str) -> AsyncCallResult | None:
        link = self._open_link(member) or await self._link_to(member)
        return await link.poll(id)

    async def store_code(self, member: ContinuumMember, digest: Digest, source: NodeId) -> None:
        link = self._open_link(member) or await self._link_to(member, despite_backoff=True)
        await link.store_code(digest, source)

    async def list_code(self, member: ContinuumMember, known: str) -> CodeList:
        link = self._open_link(member) or await self._link_to(member, despite_backoff=True)
        return await link.list_code(known)

    async def read_calls(self, member: ContinuumMember) -> tuple[FunctionCalls, ...]:
        link = self._open_link(member) or await self._link_to(member)
        return await link.read_calls()

    async def store_result(self, member: ContinuumMember, copy: ResultCopy) -> None:
        link = self._open_link(member) or await self._link_to(member)
        await link.store_result(copy)

    def keep(self, members: Iterable[ContinuumMember]) -> None:
        """The present members. Links to others end as soon as their pending requests are answered."""
        addresses = {member.node: member.address for member in members}
        for route in list(self._routes.values()):
            if addresses.get(route.member.node) != route.member.address:
                self._forget(route)

    def unreachable(self) -> dict[NodeId, str]:
        """Why members cannot be reached, and what to do."""
        return {
            node: f"{route.reason}; calls, code and results of functions cannot get there: open that port "
            "on the node, or set functions.neighbour_address there"
            for node, route in self._routes.items()
            if route.failures
        }

    async def close(self) -> None:
        """End all links at once, with whatever is under way."""
        self._is_closed = True
        await tasks.cancel_and_wait(
            [route.dialling for route in self._routes.values() if route.dialling is not None]
        )
        links = list(self._links)
        for link in links:
            link.abort()
        for link in links:
            await link.closed

    def _check_access(self) -> None:
        for link in list(self._links):
            link.check_access()

    def _open_link(self, member: ContinuumMember) -> ClientLink | None:
        route = self._routes.get(member.node)
        if route is None or route.link is None or not route.link.takes_more:
            return None
        return route.link if route.member.address == member.address else None

    async def _link_to(self, member: ContinuumMember, *, despite_backoff: bool = False) -> ClientLink:
        """A link to `member`; `Unavailable` if there is none."""
        if self._is_closed:
            raise errors.Unavailable("this node is stopping")
        route = self._routes.get(member.node)
        if route is not None and route.member.address != member.address:
            self._forget(route)
            route = None
        if route is None:
            route = self._routes[member.node] = _MemberRoute(member)
        if route.dialling is None:
            if self._clock.monotonic() < route.retry_at and not despite_backoff:
                raise errors.Unavailable(route.reason)
            route.dialling = asyncio.create_task(self._dial(route))
        await asyncio.wait([route.dialling])
        if route.link is None or not route.link.takes_more:
            raise errors.Unavailable(route.reason or f"the link to {member.name} has ended")
        return route.link

    def _forget(self, route: _MemberRoute) -> None:
        del self._routes[route.member.node]
        if route.dialling is not None:
            route.dialling.cancel()
        if route.link is not None:
            route.link.retire()

    async def _dial(self, route: _MemberRoute) -> None:
        """Set the link of `route`, or the reason why there is none."""
        link = ClientLink(route.member, self._deps, self._links.discard)
        self._links.add(link)
        reason = "the node is stopping, or the member has left"  # if this is cancelled
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._connect(link)
                await link.handshake
        except TimeoutError:
            reason = f"nothing came back within {self._timeout_s:g} s"
        except errors.SkerryError as error:
            reason = error.message
        except ssl.SSLError as error:
            reason = tls.explain(error)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            route.link, route.failures, route.reason, reason = link, 0, "", ""
            log.info("neighbour.linked", node=route.member.node, address=route.member.address)
        finally:
            route.dialling = None
            if reason:
                self._failed(route, link, reason)

    async def _connect(self, link: ClientLink) -> None:
        host, port = _split(link.member.address)
        # Members are identified by their node ids; the host name in all of their certificates is the same.
        await asyncio.get_running_loop().create_connection(
            lambda: link,
            host,
            port,
            ssl=self._context,
            server_hostname=NODE_TLS_NAME,
            ssl_handshake_timeout=self._timeout_s,
            ssl_shutdown_timeout=_SHUTDOWN_S,
        )

    def _failed(self, route: _MemberRoute, link: ClientLink, reason: str) -> None:
        link.abort()
        if not link.handshake.cancel() and not link.handshake.cancelled():
            link.handshake.exception()  # it is handled here, and no task waits for it
        if not link.is_connected:
            self._links.discard(link)  # the loop need not report it
        route.link = None
        route.reason = f"{link.peer} cannot be reached: {reason}"
        route.retry_at = self._clock.monotonic() + self._backoff.delay(route.failures)
        route.failures += 1
        if route.failures == 1:  # not each time while it is away
            log.warning(
                "neighbour.unreachable", node=route.member.node, address=route.member.address, reason=reason
            )


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise errors.Invalid(f"{address!r} is no HOST:PORT to be dialled", field="address")
    return host, int(port)
