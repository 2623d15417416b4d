"""The door of one borrowed contract, kept open: behind it is a node, which is one of ours while it lasts.

`Doorman` dials, again and again, and has the conversation that any node has (`skerry.wire.nodes.attending`).
What the node says of itself is ours to say: its name, its room and its labels are those of the contract, and
it takes no calls of functions. It is not told where our servers are. Tunnels that its session is asked for
are not the node's to dial: they are opened at the provider, and joined with whoever waits here. What to do
about the contract is decided by others, on what is seen here. The provider has `skerry.wire.rear.doors`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Protocol

import structlog

from skerry.control.sessions import Sessions
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import give_up
from skerry.market.dealing import Bought, Standing
from skerry.market.loans import Loan
from skerry.model import errors
from skerry.model.ids import ContractId, HoldId
from skerry.model.sessions import OpenTunnel
from skerry.wire.nodes import links, tunnels
from skerry.wire.nodes.attending import attend
from skerry.wire.proto import nodes_pb2 as pb
from skerry.wire.rear.ends import UNNOTICED_S
from skerry.wire.rear.keeper import Tunnel

log = structlog.get_logger(__name__)

BORROWED_LABEL: Final = "skerry.borrowed"
CONTRACT_LABEL: Final = "skerry.contract"
_TAIL: Final = 6  # of the contract's id, in the node's name


class Landlord(Protocol):
    """The part of `skerry.wire.rear.client.Client` that is needed for what was bought."""

    async def purchase(self, hold: HoldId) -> Bought: ...

    async def standing(self, contract: ContractId) -> Standing: ...

    async def release(self, contract: str) -> None: ...

    def door(
        self, contract: ContractId, credential: str, told: Callable[[Standing], None]
    ) -> AbstractAsyncContextManager[Tunnel]: ...

    def tunnel(
        self, contract: ContractId, credential: str, tunnel: OpenTunnel
    ) -> AbstractAsyncContextManager[Tunnel]: ...


class Doorman:
    """`run` for ever; `changed` is called whenever something else is to be seen here.

    `landlord` is asked for anew whenever the door is dialled, for the way to it may change.
    """

    def __init__(
        self,
        loan: Loan,
        landlord: Callable[[], Landlord],
        sessions: Sessions,
        clock: Clock,
        *,
        changed: Callable[[], None],
        backoff: Backoff,
    ) -> None:
        self._borrowed = loan.borrowed
        self._hold = loan.hold
        self._landlord = landlord
        self._sessions = sessions
        self._clock = clock
        self._changed = changed
        self._backoff = backoff
        self._is_open = False
        self._heard_at = clock.monotonic()  # a server that begins gives everybody the full time
        self.standing: Standing | None = None
        self.trouble = ""  # why the door did not open last time
        self.is_heard = False  # the node is in session

    @property
    def silent_s(self) -> float:
        """How long nothing was heard of the provider."""
        return 0.0 if self._is_open else self._clock.monotonic() - self._heard_at

    async def run(self) -> None:
        """Dial, and again when it is over."""
        failures = 0
        while True:
            began = self._clock.monotonic()
            await self._try()
            if self._clock.monotonic() - began >= self._backoff.cap_s:
                failures = 0
            await asyncio.sleep(self._backoff.delay(failures))
            failures += 1

    async def _try(self) -> None:
        contract, peer = self._borrowed.id, self._borrowed.peer
        try:
            landlord = self._landlord()
            try:
                await self._visit(landlord)
            except (errors.Unavailable, errors.TimedOut):
                raise
            except errors.SkerryError:
                await self._ask_why(landlord)
                raise
        except errors.SkerryError as error:
            self.trouble = error.message
            log.info("door.failed", contract=contract, peer=peer, error=error.message)
        else:
            log.info("door.closed", contract=contract, peer=peer)

    async def _ask_why(self, landlord: Landlord) -> None:
        """We were turned away: perhaps the contract is over."""
        try:
            self._note(await landlord.standing(self._borrowed.id))
        except errors.NotFound:
            self._note(Standing(self._borrowed.ends_at, ended="forgotten"))

    async def _visit(self, landlord: Landlord) -> None:
        # The same answer every time: so what opens the door need not be kept.
        credential = (await landlord.purchase(self._hold)).credential
        self._hear()
        async with landlord.door(self._borrowed.id, credential, self._note) as frames:
            self._is_open = True
            try:
                await self._attend(landlord, credential, frames)
            finally:
                self._is_open = False
                # That nobody was there any more came out late, unless somebody said so.
                self._heard_at = max(self._heard_at, self._clock.monotonic() - UNNOTICED_S)

    async def _attend(self, landlord: Landlord, credential: str, frames: Tunnel) -> None:
        line = _Line(self, links.Link(frames, pb.FromNode), landlord, credential)
        try:
            hello = links.hello_of(await line.recv_message())
            async with self._sessions.connect(self._borrowed.node, hello) as session:
                self._set_heard(True)
                await attend(line, self._sessions, session, self._clock, check=_always)
        finally:
            self._set_heard(False)
            await give_up(line.joined)

    def _note(self, standing: Standing) -> None:
        self.standing = standing
        self._hear()

    def _hear(self) -> None:
        self.hear_frame()
        self._changed()

    def hear_frame(self) -> None:
        """Something came through the door."""
        self._heard_at = self._clock.monotonic()

    def _set_heard(self, is_heard: bool) -> None:
        self.is_heard = is_heard
        self._changed()

    async def join(self, landlord: Landlord, credential: str, asked: OpenTunnel) -> None:
        """Open a tunnel at the provider for whoever waits for it here."""
        with suppress(errors.NotFound):  # who waited has gone
            async with self._sessions.tunnels.dialled(self._borrowed.node, asked.id) as near:
                try:
                    async with landlord.tunnel(self._borrowed.id, credential, asked) as far:
                        await _pass_on(near, far)
                except errors.SkerryError as error:
                    await near.fail(error)

    def presented(self, hello: pb.Hello) -> pb.Hello:
        """What the node is here, whatever it says that it is: but for its facts, that is what was bought."""
        borrowed = self._borrowed
        room = borrowed.taken
        return pb.Hello(
            name=f"{borrowed.peer}-{borrowed.id[-_TAIL:]}",
            facts=hello.facts,
            room=pb.Room(cpu_milli=room.cpu, memory_mb=room.memory, disk_gb=room.disk),
            labels={BORROWED_LABEL: borrowed.peer, CONTRACT_LABEL: borrowed.id},
        )


class _Line:
    """The conversation with a borrowed node, without what is not for it to say or to hear."""

    def __init__(
        self,
        doorman: Doorman,
        link: links.Link[pb.ToNode, pb.FromNode],
        landlord: Landlord,
        credential: str,
    ) -> None:
        self._doorman = doorman
        self._link = link
        self._landlord = landlord
        self._credential = credential
        self.joined: set[asyncio.Future[None]] = set()

    async def recv_message(self) -> pb.FromNode | None:
        message = await self._link.recv_message()
        if message is not None:
            self._doorman.hear_frame()
            if message.HasField("hello"):
                message.hello.CopyFrom(self._doorman.presented(message.hello))
        return message

    async def send_message(self, message: pb.ToNode) -> None:
        match message.WhichOneof("message"):
            case "open_tunnel":
                asked = tunnels.tunnel_of(message.open_tunnel)
                joined = asyncio.ensure_future(self._doorman.join(self._landlord, self._credential, asked))
                self.joined.add(joined)
                joined.add_done_callback(self.joined.discard)
            case "servers":
                pass
            case _:
                await self._link.send_message(message)


async def _pass_on(near: Tunnel, far: Tunnel) -> None:
    """What comes from either side goes to the other, until both have no more or one is gone."""
    ways = [asyncio.ensure_future(_carry(near, far)), asyncio.ensure_future(_carry(far, near))]
    try:
        await asyncio.gather(*ways)
    finally:
        await give_up(ways)


async def _carry(source: Tunnel, target: Tunnel) -> None:
    try:
        while (frame := await source.receive()) is not None:
            await target.send(frame)
    except errors.SkerryError as error:
        with suppress(errors.SkerryError):
            await target.fail(error)
        raise
    await target.end()


def _always() -> None:
    """A borrowed node is heard for as long as its door is kept open."""
