"""Replication of code: the code of every function is on two members, if there are two, from its registration
on.

Runs on every server. Each lists the code of all members, so that it knows what is on their disks, also after
a restore of the store or the loss of a disk. The leader has code copied that has too few copies, a few at a
time. Members fetch from each other (`code_fetcher`); `replica_placement` chooses the members. Code of no
registered function is removed (`skerry.functions.registry.code_store`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec
import structlog

from skerry.functions.continuum import replica_placement
from skerry.functions.continuum.code_fetcher import CodeFetcher
from skerry.functions.continuum.member_api import CopyRefused, ReplicationClient
from skerry.functions.continuum.prober import MemberProber
from skerry.functions.continuum.replica_placement import CodeCopy, ReplicationPlan
from skerry.functions.registry.code_store import CodeStore
from skerry.kit import metrics
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.functions import Function
from skerry.model.ids import Digest, NodeId
from skerry.model.members import ContinuumMember

log = structlog.get_logger(__name__)

_MAX_CONCURRENT_QUERIES: Final = 16
_COPIED_AT_ONCE: Final = 2
_COPIES_IN_A_ROUND: Final = 32  # then the code of members is listed again
_COPY_S: Final = 300.0  # one that takes longer is given up
_UNREACHABLE_CHECKS: Final = 6  # a member that did not answer for so many has no copies, as far as is known
_TRIED: Final = 8  # members, at most, before a function is registered
_WAIT_S: Final = 20.0  # for a second copy, before a function is registered
_PATIENCE_S: Final = 3.0  # of those, while no member can be reached that could before
_AGAIN_S: Final = 0.1

UNDER_REPLICATED = metrics.gauge(
    "skerry_functions_under_replicated", "Functions whose code has fewer copies than it should"
)
MISSING = metrics.gauge("skerry_functions_code_missing", "Functions whose code no reachable member has")
COPIES = metrics.counter("skerry_function_code_copies_total", "Copies of code made to repair", ["outcome"])


class RegisteredFunctions(Protocol):
    """The functions that need their code, such as `skerry.functions.registry.registry.FunctionRegistry`."""

    def all(self) -> Sequence[Function]: ...


class ReplicationStatus(msgspec.Struct, frozen=True):
    """Functions with too few copies of their code, by name."""

    under_replicated: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class CodeCopies(msgspec.Struct, frozen=True):
    """How many members have the code of a function, as far as is known, and how many should."""

    count: int
    required: int


class _Inventory:
    """The code of a member, by its last answer."""

    __slots__ = ("digests", "is_known", "is_up", "reported_at", "stamp")

    def __init__(self, now: float) -> None:
        self.stamp = ""
        self.digests: set[Digest] = set()
        self.reported_at = now
        self.is_known = False
        self.is_up = False


class CodeReplicator:
    """`run` for ever; `replicate` before a function is registered."""

    def __init__(
        self,
        prober: MemberProber,
        functions: RegisteredFunctions,
        code: CodeStore,
        fetcher: CodeFetcher,
        links: ReplicationClient,
        clock: Clock,
        *,
        every_s: float,
        leads: Callable[[], bool],
    ) -> None:
        """`leads` is whether this server repairs. Members are listed `every_s`. The `prober` is notified of
        members that answer again."""
        self._prober = prober
        self._me = prober.places.me
        self._functions = functions
        self._code = code
        self._fetcher = fetcher
        self._links = links
        self._monotonic = clock.monotonic
        self._every_s = every_s
        self._leads = leads
        self._inventories: dict[NodeId, _Inventory] = {}
        self._wake = asyncio.Event()
        self.status = ReplicationStatus()

    def check_soon(self) -> None:
        """The members have changed."""
        self._wake.set()

    def copies(self, digest: Digest) -> CodeCopies:
        """Who cannot be reached for a while counts as one that should have it, and not as one that has."""
        others = sum(digest in inventory.digests for inventory in self._inventories.values())
        members = 1 + len(self._prober.places.peers)
        return CodeCopies(others + self._code.has_archive(digest), min(replica_placement.COPIES, members))

    async def replicate(self, digest: Digest) -> None:
        """Have another member store a copy of code.

        Returns without one only if there is no other member. Raises `Unavailable` if none of the others has
        stored it in time.
        """
        until = self._monotonic() + _WAIT_S
        deadline = self._monotonic() + min(_PATIENCE_S, _WAIT_S)
        while True:
            candidates = self._candidates(digest)
            refusals: list[str] = []
            for member in candidates:
                refusal = await self._offer(digest, member, until)
                if refusal is None:
                    return
                refusals += [f"{member.name}: {refusal}"] if refusal else []
            if refusals:
                raise errors.Unavailable(
                    "the function is not registered: its code could not be put on a second member "
                    f"({'; '.join(refusals)}); check those nodes, then deploy it again"
                )
            # One that came or went a moment ago may be there, and not know us yet.
            is_unrecoverable = all(
                self._is_long_unreachable(self._inventories[member.node]) for member in candidates
            )
            if is_unrecoverable or self._monotonic() >= deadline:
                log.warning("code.single_copy", digest=digest)
                return
            await asyncio.sleep(_AGAIN_S)

    async def _offer(self, digest: Digest, member: ContinuumMember, until: float) -> str | None:
        """Have `member` keep code of ours; None if it has done so, else why not: nothing if it is away."""
        inventory = self._inventories.setdefault(member.node, _Inventory(self._monotonic()))
        # Half of the time, so that one that is slow leaves some for the next.
        within_s = max(0.0, min(_WAIT_S / 2, until - self._monotonic()))
        try:
            async with asyncio.timeout(within_s):
                await self._links.store_code(member, digest, self._me.node)
        except TimeoutError:
            return f"not within {within_s:.0f} s" if inventory.is_up else ""
        except CopyRefused as error:
            return error.message
        except errors.SkerryError as error:
            inventory.is_up = False
            log.info("code.member_away", node=member.node, digest=digest, reason=error.message)
            return ""
        inventory.digests.add(digest)
        self._answered(member, inventory)
        return None

    def _candidates(self, digest: Digest) -> list[ContinuumMember]:
        """Members for a copy: those that answered last come first, and of these the ones that have it
        already."""

        def preference(member: ContinuumMember) -> tuple[bool, bool]:
            inventory = self._inventories.get(member.node)
            is_up = inventory is not None and inventory.is_up
            return not is_up, inventory is None or digest not in inventory.digests

        return sorted(replica_placement.rank_members(digest, self._others()), key=preference)[:_TRIED]

    def _others(self) -> list[ContinuumMember]:
        return [peer.member for peer in self._prober.places.peers.values()]

    async def run(self) -> None:
        """List the code of members, and copy what has too few copies, for ever."""
        while True:
            self._wake.clear()
            await self.list_code()
            if self._leads() and not self._is_waiting():
                await self.repair()
            try:
                async with asyncio.timeout(self._every_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def list_code(self) -> None:
        """List the code of every member."""
        now = self._monotonic()
        others = {member.node: member for member in self._others()}
        for node in self._inventories.keys() - others.keys():
            del self._inventories[node]
        for node in others.keys() - self._inventories.keys():
            self._inventories[node] = _Inventory(now)
        slots = asyncio.Semaphore(_MAX_CONCURRENT_QUERIES)
        async with asyncio.TaskGroup() as group:
            for node, member in others.items():
                group.create_task(self._query(member, self._inventories[node], slots))
        self._assess(self._plan())

    async def _query(self, member: ContinuumMember, inventory: _Inventory, slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                listed = await self._links.list_code(member, inventory.stamp)
            except errors.SkerryError as error:
                inventory.is_up = False
                if inventory.is_known and self._is_long_unreachable(inventory):
                    log.warning("code.holder_lost", node=member.node, name=member.name, reason=error.message)
                    inventory.stamp, inventory.digests, inventory.is_known = "", set(), False
                return
        inventory.is_known = True
        self._answered(member, inventory)
        if listed.digests is not None:
            inventory.stamp, inventory.digests = listed.stamp, set(listed.digests)

    def _answered(self, member: ContinuumMember, inventory: _Inventory) -> None:
        inventory.reported_at = self._monotonic()
        if not inventory.is_up:
            inventory.is_up = True
            self._prober.member_answered(member.node)

    def _is_long_unreachable(self, inventory: _Inventory) -> bool:
        return self._monotonic() - inventory.reported_at > _UNREACHABLE_CHECKS * self._every_s

    def _is_waiting(self) -> bool:
        """True if a member that has not answered yet may have code that no other has."""
        return any(
            not inventory.is_known and not self._is_long_unreachable(inventory)
            for inventory in self._inventories.values()
        )

    def _plan(self) -> ReplicationPlan:
        needed = {function.code for function in self._functions.all() if function.code is not None}
        up = [
            member
            for member in self._others()
            if member.node in self._inventories and self._inventories[member.node].is_up
        ]
        code = {
            node: inventory.digests for node, inventory in self._inventories.items() if inventory.is_known
        }
        return replica_placement.plan_copies(
            needed, {**code, self._me.node: self._code.archived}, [*up, self._me]
        )

    def _assess(self, plan: ReplicationPlan) -> None:
        functions = self._functions.all() if plan.under_replicated or plan.missing else ()
        self.status = ReplicationStatus(
            tuple(function.name for function in functions if function.code in plan.under_replicated),
            tuple(function.name for function in functions if function.code in plan.missing),
        )
        UNDER_REPLICATED.set(len(self.status.under_replicated))
        MISSING.set(len(self.status.missing))

    async def repair(self) -> None:
        """Have copied what too few have, a few at a time."""
        slots = asyncio.Semaphore(_COPIED_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for copy in self._plan().copies[:_COPIES_IN_A_ROUND]:
                group.create_task(self._copy(copy, slots))
        self._assess(self._plan())

    async def _copy(self, copy: CodeCopy, slots: asyncio.Semaphore) -> None:
        digest, source, target = copy
        async with slots:
            try:
                async with asyncio.timeout(_COPY_S):
                    if target.node == self._me.node:
                        await self._fetcher.store(digest, source)
                    else:
                        await self._links.store_code(target, digest, source)
            except (errors.SkerryError, TimeoutError) as error:
                COPIES.labels("failed").inc()
                log.warning("code.not_copied", digest=digest, to=target.name, error=str(error))
                return
        COPIES.labels("done").inc()
        if (inventory := self._inventories.get(target.node)) is not None:
            inventory.digests.add(digest)
        log.info("code.copied", digest=digest, source=source, to=target.name)
