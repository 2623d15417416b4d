"""What members of the continuum say to each other, and what each may expect of the other. No wires here.

`MemberClient` is what a member does with its neighbours, `MemberService` what it does for them.
`skerry.transport.links.members` carries the one to the other; `skerry.functions.continuum.router` uses the
first and is the second.

No call is run twice unless it may be. So every failure of a far call says which of the two it is: it was not
run and never will be (`CallNotStarted`), or nobody here can tell (`CallOutcomeUnknown`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final, Protocol

from msgspec import Meta, Struct, field

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.coordinates import Coordinate
from skerry.model import errors
from skerry.model.calls import CallReport, CallRequest, CallState
from skerry.model.ids import Digest, FunctionName, NodeId
from skerry.model.members import ContinuumMember

__all__ = [
    "MAX_HOPS",
    "MAX_WARM",
    "BeforeStart",
    "CallNotStarted",
    "CallOutcomeUnknown",
    "CodeList",
    "ContinuumMember",
    "CopyRefused",
    "ForwardedCall",
    "MemberClient",
    "MemberLoad",
    "MemberService",
    "ReplicationClient",
    "ResultCopy",
    "StaleFunction",
]

MAX_WARM: Final = 1000
MAX_HOPS: Final = 16

BeforeStart = Callable[[], Awaitable[None]]
_Count = Annotated[int, Meta(ge=0)]


class MemberLoad(Struct, frozen=True):
    """How a member is at this moment, in its own words; neighbours hear it with every ping."""

    coordinate: Coordinate
    memory_free: _Count  # MB that no worker has, or an idle one would give up
    cpus_free: Annotated[float, Meta(ge=0)]
    waiting: _Count  # calls in its queue
    # Idle workers of functions; of those that have any, at most so many.
    warm: Annotated[dict[FunctionName, _Count], Meta(max_length=MAX_WARM)]


class ForwardedCall(Struct, frozen=True):
    """A call that a neighbour is to run."""

    request: CallRequest = field(name="ask")
    version: Annotated[int, Meta(ge=1)]  # of the function, as the caller knows it
    hops_left: Annotated[int, Meta(ge=0, le=MAX_HOPS)] = 0  # how many members more it may be handed on to
    deadline_s: Annotated[float, Meta(gt=0)] | None = None  # what is left of it


class CodeList(Struct, frozen=True):
    """The code that a member has. `stamp` is another whenever that is; without digests it is as it was."""

    stamp: Annotated[str, Meta(max_length=64)]
    digests: tuple[Digest, ...] | None = None


class ResultCopy(Struct, frozen=True):
    """What came of an async call, as `skerry.functions.asynchronous.results` packs it, for a member to keep
    beside its own: `state` is DONE or FAILED."""

    id: Annotated[str, Meta(max_length=512)]
    state: CallState
    ended_at: float
    body: bytes


class CopyRefused(errors.Unavailable):
    """A member that is there did not keep a copy."""

    slug = "copy-refused"


class StaleFunction(errors.Conflict):
    """Whoever is asked knows an older version of the function, or has not heard of it yet."""

    slug = "stale"


class CallNotStarted(Exception):
    """A far call was not run and will not be: it may be tried elsewhere.

    `kind` is the slug of the error with which the neighbour refused it, and empty if it could not be reached.
    """

    def __init__(self, reason: str, *, kind: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


class CallOutcomeUnknown(Exception):
    """A far call was handed over, and nobody will say what came of it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class MemberClient(Protocol):
    """The way to the neighbours. Everything may be done many times at once; a cancelled call is cancelled
    there too.

    A neighbour that says nothing costs at most one timeout, and a call that has a deadline ends one timeout
    after it at the latest. What is no call raises `Unavailable` if the neighbour cannot be reached or does
    not answer.
    """

    async def invoke(
        self,
        member: ContinuumMember,
        call: ForwardedCall,
        *,
        at_once: bool,
        begins: BeforeStart | None = None,
    ) -> CallReport:
        """Have `member` run it, and its report, with the times as they were there.

        With `at_once` a member that has a warm worker for it starts without asking back, which saves a round
        trip; if it is lost then, it may have run. Raises `CallNotStarted` or `CallOutcomeUnknown`.

        `begins`, never given with `at_once`, is awaited when the member says `CallReady`, before it is told
        to go on; what it raises is raised here, and keeps the call from being run.
        """
        ...

    async def ping(self, member: ContinuumMember, mine: MemberLoad) -> tuple[MemberLoad, float]:
        """Tell `member` how we are; how it is, and the seconds that the round trip took."""
        ...

    async def fetch(self, member: ContinuumMember, digest: Digest) -> bytes:
        """A function's archive, which is what its digest says. Raises `NotFound` if `member` has it not."""
        ...

    async def poll(self, member: ContinuumMember, id: str) -> AsyncCallResult | None:
        """How far an async call is that `member` accepted; None if it does not know of it."""
        ...


class ReplicationClient(Protocol):
    """What a member has others keep, so that it outlives this one. `Unavailable` as with `MemberClient`."""

    async def fetch(self, member: ContinuumMember, digest: Digest) -> bytes: ...

    async def poll(self, member: ContinuumMember, id: str) -> AsyncCallResult | None: ...

    async def store_code(self, member: ContinuumMember, digest: Digest, source: NodeId) -> None:
        """Have `member` fetch the code, of `source` if it can, and keep it: durable on return.

        Raises `CopyRefused` if it is there and did not.
        """
        ...

    async def list_code(self, member: ContinuumMember, known: str) -> CodeList:
        """What code `member` has; without digests if its stamp is `known`."""
        ...

    async def store_result(self, member: ContinuumMember, copy: ResultCopy) -> None:
        """Have `member` keep it: durable on return. Raises `CopyRefused` if it is there and did not."""
        ...


class MemberService(Protocol):
    """What a member does for its neighbours; each is known by its certificate when it gets here."""

    async def invoke(self, call: ForwardedCall, *, begins: BeforeStart | None) -> CallReport:
        """Run a call that came from a neighbour.

        `begins` is awaited once there is a worker, before it hears of the call; what it raises keeps the call
        from being run. None: `has_warm` was true just now, and the call is to start at once.

        Raises errors of `skerry.model.errors` only for a call that was not and will not be run: among them
        `StaleFunction`. If it is cancelled, so is the call.
        """
        ...

    def has_warm(self, function: FunctionName) -> bool:
        """True if a call that is made now, without waiting for anything, is run at once."""
        ...

    def standing(self) -> MemberLoad: ...

    def load_reported(self, node: NodeId, standing: MemberLoad) -> None:
        """The neighbour `node` says how it is; nobody has looked yet whether that can be."""
        ...

    async def code(self, digest: Digest) -> bytes:
        """A function's archive. Raises `NotFound`."""
        ...

    async def poll(self, id: str) -> AsyncCallResult | None: ...

    async def store_code(self, digest: Digest, source: NodeId) -> None:
        """Have the code here, fetched of `source` or of anybody: durable on return."""
        ...

    def list_code(self, known: str) -> CodeList: ...

    async def store_result(self, copy: ResultCopy) -> None: ...
