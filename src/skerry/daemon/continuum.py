"""This process among the others that take calls of functions: how it is known, and how it reaches them.

Called by `skerry.daemon.functions`, which puts what is here before and behind the workers of this process.
Where nobody else takes calls all of it is there too, and costs nothing.
"""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from skerry.daemon import listeners
from skerry.functions.asynchronous.runner import AsyncCallRunner
from skerry.functions.continuum.code_fetcher import CodeFetcher, FetchArchive
from skerry.functions.continuum.code_sources import CodeSources
from skerry.functions.continuum.function_replica import FunctionReplica
from skerry.functions.continuum.member_cache import MemberCache
from skerry.functions.continuum.member_service import AsyncResultLookup, FunctionView, LocalMemberService
from skerry.functions.continuum.policies.loading import load_policy
from skerry.functions.continuum.result_replication import ResultCopies
from skerry.functions.continuum.router import CallRouter
from skerry.functions.invocation.invoker import Invoker
from skerry.functions.ports import FunctionLookup
from skerry.functions.qos import parse_classes
from skerry.functions.registry.code_store import CodeStore
from skerry.kit import files
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import Digest, NodeId
from skerry.model.members import ContinuumMember
from skerry.model.node_messages import FunctionUpdate, MemberList
from skerry.model.resources import Megabytes, Millicores, Resources
from skerry.model.settings import FunctionSettings
from skerry.transport.links.members.link_pool import LinkPool
from skerry.transport.links.members.server import MemberLinkServer
from skerry.transport.links.nodes import code_transfer

log = structlog.get_logger(__name__)

_LISTEN: Final = "functions.neighbours"
_AUTO: Final = "auto"
_PORT: Final = 7331


class MemberSource(Protocol):
    """Who takes calls, as the control plane knows it or told it."""

    @property
    def all(self) -> tuple[ContinuumMember, ...]: ...

    def listen(self, changed: Callable[[], None]) -> None: ...


class RevocationChecker(Protocol):
    """Which certificates do not count, as far as this process can know."""

    def is_revoked(self, serial: str) -> bool: ...

    def listen(self, changed: Callable[[], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalMember:
    """This process as others know it."""

    member: ContinuumMember
    members: MemberSource
    dialling: ssl.SSLContext  # shows its certificate to neighbours that it calls
    serving: ssl.SSLContext  # and to those that call it
    revocations: RevocationChecker
    listening: socket.socket | None  # bound, for neighbours; None: none can call
    servers: Callable[[], Sequence[str]]  # HOST:PORT of those that have code, beside neighbours


def bind_listener(settings: FunctionSettings, folder: Path, *, host: str) -> socket.socket | None:
    """Where other members call, as the setting says; with `auto` at `host`, and on the same port after a
    restart, so that members that know this one find it again while there is no server to tell them."""
    if settings.neighbours != _AUTO:
        return listeners.bind(settings.neighbours, _LISTEN) if settings.neighbours else None
    remembered = files.private_folder(folder) / "listen.port"
    try:
        ports = [int(remembered.read_text()), _PORT, 0]
    except (FileNotFoundError, ValueError):
        ports = [_PORT, 0]
    bound = listeners.bind_first_free(host, ports, _LISTEN)
    files.write_atomically(remembered, str(bound.getsockname()[1]).encode())
    return bound


class MemberLinkAccess:
    """Who may have a link with this process: `skerry.transport.links.members.link_identity.LinkAccess`."""

    def __init__(self, here: LocalMember) -> None:
        self._members = here.members
        self._revocations = here.revocations
        self.is_revoked = here.revocations.is_revoked

    def is_member(self, node: NodeId) -> bool:
        return any(member.node == node for member in self._members.all)

    def listen(self, changed: Callable[[], None]) -> None:
        self._members.listen(changed)
        self._revocations.listen(changed)


class MemberSync:
    """What a node hears of members and functions, and keeps: `skerry.node.agent.session.MemberListener`."""

    def __init__(self, members: MemberCache, copies: FunctionReplica) -> None:
        self.members = members
        self.copies = copies

    @classmethod
    async def open(cls, folder: Path, settings: FunctionSettings, clock: Clock) -> MemberSync:
        """With what it knew when it ended."""
        copies = await FunctionReplica.open(folder, settings, clock)
        return cls(MemberCache(folder / "members.json"), copies)

    async def hear_members(self, told: MemberList) -> None:
        await self.members.hear(told)

    async def hear_functions(self, told: FunctionUpdate) -> None:
        await self.copies.hear(told)


def max_worker_resources(members: Sequence[ContinuumMember]) -> Resources:
    """The largest worker that any of them could have."""
    return Resources(
        Millicores(max((int(member.cpus * 1000) for member in members), default=0)),
        Megabytes(max((member.memory for member in members), default=0)),
    )


class CodeDownloader:
    """Code that this process lacks: of its neighbours, and else of the servers."""

    def __init__(self, here: LocalMember, settings: FunctionSettings) -> None:
        self._here = here
        self._most_bytes = settings.max_code_bytes
        self.near: FetchArchive | None = None  # set once there are neighbours

    async def fetch(self, digest: Digest, source: NodeId | None = None) -> bytes:
        """The archive, of `source` if it has it. Raises `NotFound` if nobody has it, `Unavailable` if not all
        could be asked."""
        reasons = []
        for ask in (self.near, *map(self._of, self._here.servers())):
            if ask is None:
                continue
            try:
                return await ask(digest, source)
            except errors.NotFound:
                continue
            except errors.SkerryError as error:
                reasons.append(error.message)
        if reasons:
            raise errors.Unavailable("; ".join(reasons))
        raise errors.NotFound(f"nobody has the code {digest}")

    def _of(self, server: str) -> FetchArchive:
        async def fetch(digest: Digest, source: NodeId | None = None) -> bytes:
            return await code_transfer.fetch_archive(
                server, self._here.dialling, digest, most_bytes=self._most_bytes
            )

        return fetch


def open_links(here: LocalMember, settings: FunctionSettings, clock: Clock, undo: AsyncExitStack) -> LinkPool:
    """The way to the neighbours."""
    links = LinkPool(
        here.member.node,
        here.dialling,
        clock,
        settings,
        timeout_s=settings.neighbour_timeout_s,
        access=MemberLinkAccess(here),
    )
    undo.push_async_callback(links.close)
    return links


def explain_unreachable(reasons: Mapping[NodeId, str]) -> list[str]:
    """What it means that members which are there cannot be dialled, and what to do."""
    return [
        f"{reason}; calls, code and results of functions cannot get there: open that port on the node, "
        "or set functions.neighbour_address there"
        for _, reason in sorted(reasons.items())
    ]


def open_router(
    here: LocalMember,
    invoker: Invoker,
    registry: FunctionLookup,
    links: LinkPool,
    supply: CodeDownloader,
    settings: FunctionSettings,
    clock: Clock,
    undo: AsyncExitStack,
) -> CallRouter:
    """The door to functions, which knows who else takes calls from now on."""
    classes = parse_classes(settings.classes)
    entry = CallRouter(
        invoker,
        registry,
        links,
        settings,
        clock,
        me=here.member,
        choose=lambda name: load_policy(name, classes),
        chance=random.Random(),  # noqa: S311 - for jitter and directions, not for secrets
    )
    undo.callback(entry.close)
    supply.near = CodeSources(links, entry.places).fetch

    def follow() -> None:
        links.keep(here.members.all)
        entry.follow(here.members.all)

    here.members.listen(follow)
    follow()
    return entry


def open_result_copies(
    here: LocalMember, asynchronous: AsyncCallRunner, links: LinkPool, entry: CallRouter, clock: Clock
) -> ResultCopies:
    """What comes of async calls goes to a second member, once these are run."""
    peers = entry.places.peers
    copies = ResultCopies(links, lambda: [peer.member for peer in peers.values()], asynchronous.store, clock)
    asynchronous.listen(copies.look_soon)
    here.members.listen(copies.members_changed)
    return copies


def serve(
    here: LocalMember,
    entry: CallRouter,
    invoker: Invoker,
    registry: FunctionView,
    polls: AsyncResultLookup,
    code: CodeStore,
    fetcher: CodeFetcher,
    settings: FunctionSettings,
    clock: Clock,
    *,
    stop_s: float,
    undo: AsyncExitStack,
) -> None:
    """Take calls of neighbours, if they can come."""
    if here.listening is None:
        return
    guests = LocalMemberService(entry, invoker, registry, polls, code, fetcher)
    server = MemberLinkServer(
        here.member.node, guests, here.serving, clock, settings, access=MemberLinkAccess(here)
    )
    undo.push_async_callback(server.stop, stop_s)
    server.listen(here.listening)
