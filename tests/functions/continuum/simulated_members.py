"""Members of a small continuum in simulated time, and links between them that fail as a test tells them to.

    async with Town(function("f")) as town:
        here, there = town.join("here"), town.join("there")
        await town.meet()
        report = await here.call("f")

Each member has a real pool, whose workers pretend, and a policy of its own. The links do what real ones
promise, and lose a call wherever a test wants them to.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skerry.functions.asynchronous import results
from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.asynchronous.runner import AsyncCallRunner
from skerry.functions.continuum import async_locator
from skerry.functions.continuum.member_api import (
    BeforeStart,
    CallNotStarted,
    CallOutcomeUnknown,
    CodeList,
    CopyRefused,
    ForwardedCall,
    MemberLoad,
    ResultCopy,
)
from skerry.functions.continuum.member_service import LocalMemberService
from skerry.functions.continuum.member_table import MemberTable
from skerry.functions.continuum.policies import loading
from skerry.functions.continuum.router import CallRouter
from skerry.functions.invocation.invoker import Invoker
from skerry.functions.qos import DEFAULT_CLASSES
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.calls import CallReport, CallRequest, CallResult, CallState
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName, NodeId
from skerry.model.members import ContinuumMember
from skerry.model.settings import FunctionSettings
from skerry.sim.simulated_time import LoopClock
from tests.support.workers import FakeHost, FakeWorker, Registered

TIMEOUT_S = 2.0


class Fault(enum.Enum):
    """Where on its way a call is lost, in order."""

    UNREACHED = enum.auto()  # before it was sent
    SENT = enum.auto()  # after, and before there was an answer of any kind
    READY = enum.auto()  # the other has a worker for it
    BEGUN = enum.auto()  # and the caller has written that down
    RUNNING = enum.auto()  # in the middle of it
    ANSWERED = enum.auto()  # it was run, and its answer is lost


class CountingWorker(FakeWorker):
    """Counts how often the call with which parameters was run, in the whole town."""

    async def call(
        self, params: bytes, *, wants_output: bool, within_s: float, traceparent: str = ""
    ) -> CallResult:
        self._host.ran(params)  # type: ignore[attr-defined]  # hosts of a town have it
        return await super().call(params, wants_output=wants_output, within_s=within_s)


class Shelf(Registered):
    """The functions as one member knows them."""

    def __init__(self, *functions: Function) -> None:
        super().__init__(*functions)
        self.archives: dict[Digest, bytes] = {}
        self.behind = 0  # how often it was told that there is more to know

    @property
    def archived(self) -> set[Digest]:
        return set(self.archives)

    @property
    def stamp(self) -> str:
        return " ".join(sorted(self.archives)) or "none"

    async def archive(self, digest: Digest) -> bytes:
        if digest not in self.archives:
            raise errors.NotFound("it is not here")
        return self.archives[digest]

    async def catch_up(self, name: str, version: int) -> None:
        self.behind += 1


class Kept:
    """Async calls that were accepted at a member."""

    def __init__(self, node: NodeId) -> None:
        self.calls: dict[str, AsyncCallResult] = {}
        self.polled: list[str] = []
        self._new_id = async_locator.id_maker(node)

    async def accept(self, ask: CallRequest) -> str:
        id = self._new_id(ask, float(len(self.calls)))
        self.calls[id] = AsyncCallResult(CallState.QUEUED)
        return id

    async def poll(self, id: str, *, wait_s: float = 0.0) -> AsyncCallResult | None:
        self.polled.append(id)
        return self.calls.get(id)

    async def keep_copy(
        self, id: str, state: CallState, ended_at: float, body: bytes, *, holder: str
    ) -> None:
        self.calls[id] = results.unpack(state, body)


class Resident:
    """One member."""

    def __init__(
        self, town: Town, member: ContinuumMember, functions: list[Function], settings: dict[str, Any]
    ) -> None:
        self.town = town
        self.member = member
        self.host = FakeHost(town.clock)
        self.host.kind = CountingWorker
        self.host.ran = town.ran  # type: ignore[attr-defined]
        self.shelf = Shelf(*functions)
        self.settings = FunctionSettings(
            area=member.area,
            remote_area=member.remote_area,
            neighbour_timeout_s=town.timeout_s,
            **settings,
        )
        self.invoker = Invoker(
            self.host,
            self.shelf,
            self.settings,
            town.clock,
            node=member.name,
            memory_mb=member.memory,
            cpus=member.cpus,
        )
        self.links = TownLinks(town, member.node)
        self.continuum = CallRouter(
            self.invoker,
            self.shelf,
            self.links,
            self.settings,
            town.clock,
            places=MemberTable(member),
            choose=lambda name: loading.load_policy(name, DEFAULT_CLASSES),
            chance=random.Random(member.node),
        )
        self.kept = Kept(member.node)
        self.guests = LocalMemberService(
            self.continuum, self.invoker, self.shelf, self.kept, self.shelf, self
        )
        self.polls = async_locator.AsyncCallLocator(self.kept, self.links, self.continuum.places)
        self.measuring = asyncio.ensure_future(self.continuum.run())

    async def call(self, name: str, *, begins: BeforeStart | None = None, **ask: Any) -> CallReport:
        return await self.continuum.invoke(CallRequest(FunctionName(name), **ask), begins=begins)

    def begin(self, name: str, **ask: Any) -> asyncio.Task[CallReport]:
        return asyncio.ensure_future(self.call(name, **ask))

    async def store(self, digest: Digest, source: NodeId) -> None:
        """Have code of another here."""
        if (refusal := self.town.full.get(self.member.node)) is not None:
            raise refusal
        self.shelf.archives[digest] = await self.links.fetch(self.town.residents[source].member, digest)

    def knows(self, other: Resident) -> bool:
        """True if it would send a call there."""
        return self.continuum.places.peers[other.member.node].is_up

    @property
    def served(self) -> int:
        """Calls that its workers were handed."""
        return sum(worker.calls for worker in self.host.spawned)

    async def leave(self) -> None:
        await cancel_and_wait([self.measuring])
        self.continuum.close()
        await self.invoker.close()
        assert self.host.wrongs == []


class Town:
    """All members, and what is between them."""

    def __init__(self, *functions: Function, way_s: float = 0.001, timeout_s: float = TIMEOUT_S) -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.functions = list(functions)
        self.way_s = way_s  # to anybody else
        self.timeout_s = timeout_s  # until somebody who says nothing is given up
        self.residents: dict[NodeId, Resident] = {}
        self.cuts: set[frozenset[NodeId]] = set()  # pairs that do not reach each other
        self.dead: set[NodeId] = set()
        self.full: dict[NodeId, errors.SkerryError] = {}  # those that keep nothing, and why
        self.fault: Callable[[NodeId, NodeId], Fault | None] = lambda here, there: None
        self.runs: Counter[bytes] = Counter()
        self.sent: list[tuple[NodeId, NodeId, ForwardedCall, bool]] = []
        self.pings: Counter[tuple[NodeId, NodeId]] = Counter()

    def ran(self, params: bytes) -> None:
        self.runs[params] += 1

    def join(
        self,
        name: str,
        *,
        area: str = "edge",
        remote_area: str = "",
        memory: int = 1024,
        cpus: float = 4.0,
        is_server: bool = False,
        **settings: Any,
    ) -> Resident:
        node = NodeId(name)
        member = ContinuumMember(node, name, area, remote_area, f"{name}:1", memory, cpus, is_server)
        resident = self.residents[node] = Resident(self, member, self.functions, settings)
        return resident

    async def meet(self) -> None:
        """Everybody hears of everybody, and has been asked how it is."""
        members = [resident.member for resident in self.residents.values()]
        for resident in self.residents.values():
            resident.continuum.follow(members)
        await asyncio.sleep(10 * self.way_s + 0.01)

    def reaches(self, here: NodeId, there: NodeId) -> bool:
        return (
            there in self.residents
            and there not in self.dead
            and here not in self.dead
            and frozenset((here, there)) not in self.cuts
        )

    def cut(self, one: Resident, other: Resident) -> None:
        self.cuts.add(frozenset((one.member.node, other.member.node)))

    async def __aenter__(self) -> Town:
        return self

    async def __aexit__(self, *_: object) -> None:
        for resident in self.residents.values():
            await resident.leave()


@asynccontextmanager
async def accepting(resident: Resident, folder: Path) -> AsyncIterator[AsyncCallRunner]:
    """With real async calls at this member, on disk."""
    clock, node = resident.town.clock, resident.member.node
    folder.mkdir(parents=True, exist_ok=True)
    kept = await AsyncCallRunner(
        folder, resident.continuum, clock, resident.settings, async_locator.id_maker(node)
    ).open()
    running = asyncio.create_task(kept.run())
    resident.guests._polls = kept
    resident.polls = async_locator.AsyncCallLocator(kept, resident.links, resident.continuum.places)
    try:
        yield kept
    finally:
        await cancel_and_wait([running])
        await kept.close(within_s=5.0)


class TownLinks:
    """The links of one member."""

    def __init__(self, town: Town, node: NodeId) -> None:
        self._town = town
        self._node = node

    async def invoke(
        self,
        member: ContinuumMember,
        call: ForwardedCall,
        *,
        at_once: bool,
        begins: BeforeStart | None = None,
    ) -> CallReport:
        assert not (at_once and begins)
        state = _State()
        try:
            async with asyncio.timeout(
                None if call.deadline_s is None else call.deadline_s + self._town.timeout_s
            ):
                return await self._invoke(member, call, at_once, begins, state)
        except TimeoutError:
            raise _lost(may_have_run=state.may_have_run) from None

    async def _invoke(
        self,
        member: ContinuumMember,
        call: ForwardedCall,
        at_once: bool,
        begins: BeforeStart | None,
        state: _State,
    ) -> CallReport:
        town, there = self._town, member.node
        fault = town.fault(self._node, there)
        if fault is Fault.UNREACHED or not town.reaches(self._node, there):
            await asyncio.sleep(self._town.timeout_s)
            raise CallNotStarted("nothing came back")
        town.sent.append((self._node, there, call, at_once))
        state.may_have_run = at_once
        await asyncio.sleep(town.way_s)
        guests = town.residents[there].guests
        go = asyncio.get_running_loop().create_future()
        ready = asyncio.Event()

        async def begins_there() -> None:
            ready.set()
            await go

        async def run() -> CallReport:
            if at_once and guests.has_warm(call.request.function):
                return await guests.invoke(call, begins=None)
            return await guests.invoke(call, begins=begins_there)

        running = asyncio.ensure_future(run())
        waiting = asyncio.ensure_future(ready.wait())
        try:
            if fault is Fault.SENT:
                await asyncio.sleep(self._town.timeout_s)
                raise _lost(may_have_run=at_once)
            await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
            if ready.is_set():
                state.may_have_run = False
                if begins is not None and fault is not Fault.READY:
                    await begins()
                if fault in (Fault.READY, Fault.BEGUN):
                    await asyncio.sleep(self._town.timeout_s)
                    raise _lost(may_have_run=False)
                state.may_have_run = True
                go.set_result(None)
            if fault is Fault.RUNNING:
                await asyncio.sleep(town.residents[there].host.run_s / 2)
                await asyncio.sleep(self._town.timeout_s)
                raise _lost(may_have_run=True)
            await asyncio.wait([running])
            is_lost = fault is Fault.ANSWERED or not town.reaches(self._node, there)
            if is_lost and running.exception() is None:
                await asyncio.sleep(self._town.timeout_s)
                raise _lost(may_have_run=True)
            await asyncio.sleep(town.way_s)
            return running.result()
        except errors.SkerryError as error:
            if begins is not None and getattr(begins, "has_failed", False):
                raise
            raise CallNotStarted(error.message, kind=error.slug) from None
        finally:
            await cancel_and_wait([running, waiting])

    async def ping(self, member: ContinuumMember, mine: MemberLoad) -> tuple[MemberLoad, float]:
        await self._reach(member)
        town = self._town
        town.pings[self._node, member.node] += 1
        guests = town.residents[member.node].guests
        guests.load_reported(self._node, mine)
        return guests.load(), 2 * town.way_s

    async def fetch(self, member: ContinuumMember, digest: Digest) -> bytes:
        await self._reach(member)
        return await self._town.residents[member.node].guests.code(digest)

    async def poll(self, member: ContinuumMember, id: str) -> AsyncCallResult | None:
        await self._reach(member)
        return await self._town.residents[member.node].guests.poll(id)

    async def store_code(self, member: ContinuumMember, digest: Digest, source: NodeId) -> None:
        await self._reach(member)
        try:
            await self._town.residents[member.node].guests.store_code(digest, source)
        except errors.SkerryError as error:
            raise CopyRefused(error.message) from None

    async def list_code(self, member: ContinuumMember, known: str) -> CodeList:
        await self._reach(member)
        return self._town.residents[member.node].guests.list_code(known)

    async def store_result(self, member: ContinuumMember, copy: ResultCopy) -> None:
        await self._reach(member)
        if (refusal := self._town.full.get(member.node)) is not None:
            raise CopyRefused(refusal.message)
        await self._town.residents[member.node].guests.store_result(copy)

    async def _reach(self, member: ContinuumMember) -> None:
        if not self._town.reaches(self._node, member.node):
            await asyncio.sleep(self._town.timeout_s)
            raise errors.Unavailable(f"{member.name} cannot be reached")
        await asyncio.sleep(2 * self._town.way_s)


class _State:
    """What would be so if a call were lost at this moment."""

    may_have_run = False


def _lost(*, may_have_run: bool) -> Exception:
    return CallOutcomeUnknown("the link was lost") if may_have_run else CallNotStarted("the link was lost")


def idempotent(function: Function) -> Function:
    return replace(function, is_idempotent=True)
