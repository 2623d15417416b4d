"""The API between members of the continuum, independent of transport.

`MemberClient` is what a member requests from its neighbours, `MemberService` what it does for them.
`skerry.transport.links.members` transports requests; `skerry.functions.continuum.router` uses the client. No
call is run twice unless it is idempotent. So every failure of a forwarded call is one of two: it was not run
and never will be (`CallNotStarted`), or that is not known (`CallOutcomeUnknown`).
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
    "CallsClient",
    "CodeList",
    "ContinuumMember",
    "CopyRefused",
    "ForwardedCall",
    "FunctionCalls",
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
    """The load that a member reports; neighbours get it with every ping."""

    coordinate: Coordinate
    memory_free: _Count  # MB that no worker has, or an idle one would give up
    cpus_free: Annotated[float, Meta(ge=0)]
    waiting: _Count  # calls in its queue
    # Idle workers of functions; of those that have any, at most so many.
    warm: Annotated[dict[FunctionName, _Count], Meta(max_length=MAX_WARM)]


class FunctionCalls(Struct, frozen=True, array_like=True):
    """Calls of a function that ended in the workers of a member since it started."""

    function: Annotated[FunctionName, Meta(max_length=256)]
    succeeded: _Count = 0
    failed: _Count = 0
    cold_starts: _Count = 0
    run_s: Annotated[float, Meta(ge=0)] = 0.0

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed


class ForwardedCall(Struct, frozen=True):
    """A call for a neighbour to run."""

    request: CallRequest = field(name="ask")
    version: Annotated[int, Meta(ge=1)]  # of the function, as the caller knows it
    hops_left: Annotated[int, Meta(ge=0, le=MAX_HOPS)] = 0  # how many members more it may be handed on to
    deadline_s: Annotated[float, Meta(gt=0)] | None = None  # what is left of it


class CodeList(Struct, frozen=True):
    """The code that a member has. `stamp` is another whenever that is; without digests it is as it was."""

    stamp: Annotated[str, Meta(max_length=64)]
    digests: tuple[Digest, ...] | None = None


class ResultCopy(Struct, frozen=True):
    """The result of an async call, as encoded by `skerry.functions.asynchronous.results`, for a member to
    store: `state` is DONE or FAILED."""

    id: Annotated[str, Meta(max_length=512)]
    state: CallState
    ended_at: float
    body: bytes


class CopyRefused(errors.Unavailable):
    """A reachable member did not store a copy."""

    slug = "copy-refused"


class StaleFunction(errors.Conflict):
    """The member knows an older version of the function, or none yet."""

    slug = "stale"


class CallNotStarted(Exception):
    """A forwarded call was not run and will not be: another member may be tried.

    `kind` is the slug of the error with which the neighbour refused it, and empty if it could not be reached.
    """

    def __init__(self, reason: str, *, kind: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


class CallOutcomeUnknown(Exception):
    """A forwarded call was sent, and its result is not known."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class MemberClient(Protocol):
    """The client of the neighbours.

    Requests may be concurrent; a cancelled call is cancelled there too. A neighbour that does not answer
    costs at most one timeout, and a call with a deadline ends one timeout after it at the latest. Other
    requests raise `Unavailable` if the neighbour cannot be reached or does not answer.
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

        With `at_once` a member that has a warm worker for it starts without a `CallReady`, which saves a
        round trip; if it is lost then, the call may have run. Raises `CallNotStarted` or
        `CallOutcomeUnknown`.

        `begins`, never given with `at_once`, is awaited when the member sends `CallReady`, before the call is
        started; what it raises is raised here, and prevents the start.
        """
        ...

    async def ping(self, member: ContinuumMember, mine: MemberLoad) -> tuple[MemberLoad, float]:
        """Tell `member` how we are; how it is, and the seconds that the round trip took."""
        ...

    async def fetch(self, member: ContinuumMember, digest: Digest) -> bytes:
        """A function's archive, which is what its digest says. Raises `NotFound` if `member` has it not."""
        ...

    async def poll(self, member: ContinuumMember, id: str) -> AsyncCallResult | None:
        """The state of an async call that `member` accepted; None if it does not know it."""
        ...


class CallsClient(Protocol):
    """Reads what members have counted. `Unavailable` as with `MemberClient`."""

    async def read_calls(self, member: ContinuumMember) -> tuple[FunctionCalls, ...]: ...


class ReplicationClient(Protocol):
    """What a member has others keep, so that it outlives this one. `Unavailable` as with `MemberClient`."""

    async def fetch(self, member: ContinuumMember, digest: Digest) -> bytes: ...

    async def poll(self, member: ContinuumMember, id: str) -> AsyncCallResult | None: ...

    async def store_code(self, member: ContinuumMember, digest: Digest, source: NodeId) -> None:
        """Have `member` fetch the code, from `source` if it can, and store it: durable on return.

        Raises `CopyRefused` if it is reachable and did not.
        """
        ...

    async def list_code(self, member: ContinuumMember, known: str) -> CodeList:
        """What code `member` has; without digests if its stamp is `known`."""
        ...

    async def store_result(self, member: ContinuumMember, copy: ResultCopy) -> None:
        """Have `member` store it: durable on return. Raises `CopyRefused` if it is reachable and did not."""
        ...


class MemberService(Protocol):
    """What a member does for its neighbours, which are authenticated by their certificates."""

    async def invoke(self, call: ForwardedCall, *, begins: BeforeStart | None) -> CallReport:
        """Run a call that came from a neighbour.

        `begins` is awaited once there is a worker, before it gets the call; what it raises prevents the
        start. None: `has_warm` was true just now, and the call is to start at once.

        Raises errors of `skerry.model.errors` only for a call that was not and will not be run: among them
        `StaleFunction`. If it is cancelled, so is the call.
        """
        ...

    def has_warm(self, function: FunctionName) -> bool:
        """True if a call that is made now, without waiting for anything, is run at once."""
        ...

    def load(self) -> MemberLoad: ...

    def load_reported(self, node: NodeId, load: MemberLoad) -> None:
        """The neighbour `node` reports its load, which is not validated yet."""
        ...

    async def code(self, digest: Digest) -> bytes:
        """A function's archive. Raises `NotFound`."""
        ...

    async def poll(self, id: str) -> AsyncCallResult | None: ...

    async def store_code(self, digest: Digest, source: NodeId) -> None:
        """Store the code here, fetched from `source` or another member: durable on return."""
        ...

    def list_code(self, known: str) -> CodeList: ...

    async def store_result(self, copy: ResultCopy) -> None: ...

    def calls(self) -> tuple[FunctionCalls, ...]: ...
