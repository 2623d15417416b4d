"""This process among the others that take calls of functions: how it is known, and how it reaches them.

Called by `skerry.daemon.functions`, which puts what is here before and behind the workers of this process.
Where nobody else takes calls all of it is there too, and costs nothing.
"""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from skerry.functions.continuum.classes import parse_classes
from skerry.functions.continuum.copies import Copies
from skerry.functions.continuum.entries import Continuum
from skerry.functions.continuum.fetchers import Fetch
from skerry.functions.continuum.guests import Guests, Mirror, Polls
from skerry.functions.continuum.members import KnownMembers
from skerry.functions.continuum.policies.choosing import choose
from skerry.functions.continuum.sources import Sources
from skerry.functions.hosts import Lookup
from skerry.functions.invoking import Invoker
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import Digest
from skerry.model.members import Member
from skerry.model.room import Megabytes, Millicores, Room
from skerry.model.sessions import Functions, Members
from skerry.model.settings import FunctionSettings
from skerry.wire.neighbours.identities import Counts
from skerry.wire.neighbours.links import KeptLinks
from skerry.wire.neighbours.serving import NeighbourServer
from skerry.wire.nodes import code

log = structlog.get_logger(__name__)


class Everybody(Protocol):
    """Who takes calls, as the control plane knows it or told it."""

    @property
    def all(self) -> tuple[Member, ...]: ...

    def listen(self, changed: Callable[[], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class Here:
    """This process as others know it."""

    member: Member
    members: Everybody
    dialling: ssl.SSLContext  # shows its certificate to neighbours that it calls
    serving: ssl.SSLContext  # and to those that call it
    counts: Counts
    listening: socket.socket | None  # bound, for neighbours; None: none can call
    servers: Callable[[], Sequence[str]]  # HOST:PORT of those that have code, beside neighbours


class NodeMember:
    """What a node hears of members and functions, and keeps: `skerry.node.attendance.MemberHere`."""

    def __init__(self, members: KnownMembers, copies: Copies) -> None:
        self.members = members
        self.copies = copies

    @classmethod
    async def open(cls, folder: Path, settings: FunctionSettings, clock: Clock) -> NodeMember:
        """With what it knew when it ended."""
        copies = await Copies.open(folder, settings, clock)
        return cls(KnownMembers(folder / "members.json"), copies)

    async def hear_members(self, told: Members) -> None:
        await self.members.hear(told)

    async def hear_functions(self, told: Functions) -> None:
        await self.copies.hear(told)


def most_of(members: Sequence[Member]) -> Room:
    """The largest worker that any of them could have."""
    return Room(
        Millicores(max((int(member.cpus * 1000) for member in members), default=0)),
        Megabytes(max((member.memory for member in members), default=0)),
    )


class Supply:
    """Code that this process lacks: of its neighbours, and else of the servers."""

    def __init__(self, here: Here, settings: FunctionSettings) -> None:
        self._here = here
        self._most_bytes = settings.max_code_bytes
        self.near: Fetch | None = None  # set once there are neighbours

    async def fetch(self, digest: Digest) -> bytes:
        """The archive. Raises `NotFound` if nobody has it, `Unavailable` if not all could be asked."""
        reasons = []
        for source in (self.near, *map(self._of, self._here.servers())):
            if source is None:
                continue
            try:
                return await source(digest)
            except errors.NotFound:
                continue
            except errors.SkerryError as error:
                reasons.append(error.message)
        if reasons:
            raise errors.Unavailable("; ".join(reasons))
        raise errors.NotFound(f"nobody has the code {digest}")

    def _of(self, server: str) -> Fetch:
        async def fetch(digest: Digest) -> bytes:
            return await code.fetch(server, self._here.dialling, digest, most_bytes=self._most_bytes)

        return fetch


def open_links(here: Here, settings: FunctionSettings, clock: Clock, undo: AsyncExitStack) -> KeptLinks:
    """The way to the neighbours."""
    links = KeptLinks(
        here.member.node,
        here.dialling,
        clock,
        settings,
        timeout_s=settings.neighbour_timeout_s,
        counts=here.counts,
    )
    undo.push_async_callback(links.close)
    return links


def open_entry(
    here: Here,
    invoker: Invoker,
    registry: Lookup,
    links: KeptLinks,
    supply: Supply,
    settings: FunctionSettings,
    clock: Clock,
    undo: AsyncExitStack,
) -> Continuum:
    """The door to functions, which knows who else takes calls from now on."""
    classes = parse_classes(settings.classes)
    entry = Continuum(
        invoker,
        registry,
        links,
        settings,
        clock,
        me=here.member,
        choose=lambda name: choose(name, classes),
        chance=random.Random(),  # noqa: S311 - for jitter and directions, not for secrets
    )
    undo.callback(entry.close)
    supply.near = Sources(links, entry.places).fetch

    def follow() -> None:
        links.keep(here.members.all)
        entry.follow(here.members.all)

    here.members.listen(follow)
    follow()
    return entry


def serve(
    here: Here,
    entry: Continuum,
    invoker: Invoker,
    registry: Mirror,
    polls: Polls,
    settings: FunctionSettings,
    clock: Clock,
    *,
    stop_s: float,
    undo: AsyncExitStack,
) -> None:
    """Take calls of neighbours, if they can come."""
    if here.listening is None:
        return
    guests = Guests(entry, invoker, registry, polls)
    server = NeighbourServer(here.member.node, guests, here.serving, clock, settings, counts=here.counts)
    undo.push_async_callback(server.stop, stop_s)
    server.listen(here.listening)
