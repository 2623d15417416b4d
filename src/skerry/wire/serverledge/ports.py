"""What this room needs of functions, so that it can be served and tested without any worker.

`skerry.functions` keeps these promises; `FunctionService` here is its registry together with whoever has to
hear of a change before it is acknowledged. Reads come from memory and wait for nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum.code_replication import CodeCopies, ReplicationStatus
from skerry.functions.invocation.invoker import PoolStatus
from skerry.functions.registry.registry import NewFunction
from skerry.model.calls import CallReport, CallRequest
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.members import MemberStatus
from skerry.node.workers.function_logs import FunctionLogLine


class FunctionService(Protocol):
    """What is registered. A change is durable when it returns, and no call that starts later misses it."""

    async def create(self, new: NewFunction, *, actor: str) -> Function:
        """Raises `AlreadyExists`, `NotFound` for the runtime, and whatever else is wrong with it."""
        ...

    async def update(self, new: NewFunction, *, actor: str) -> Function:
        """The next version, or the first if there is none."""
        ...

    async def delete(self, name: str, *, actor: str) -> Function:
        """Raises `NotFound`."""
        ...

    def get(self, name: str) -> Function | None: ...

    def names(self) -> Sequence[str]:
        """All, in order."""
        ...

    def runs(self, function: Function) -> str:
        """What really runs it, for people: `Python 3.11.2`. Raises `Unavailable` if nothing here does."""
        ...

    def copies(self, function: Function) -> CodeCopies | None:
        """On how many members its code is; None if it has none, or that is not known here."""
        ...

    def replication(self) -> ReplicationStatus | None:
        """Functions whose code has too few copies; None where that is not known."""
        ...


class InvocationService(Protocol):
    """Calls that are answered at once, and the workers for them."""

    async def invoke(self, request: CallRequest) -> CallReport:
        """Raises `NotFound`, `Overloaded`, `Unavailable`; what the function does wrong is in the report."""
        ...

    async def prewarm(self, name: str, instances: int, *, force: bool = False) -> int: ...

    def status(self) -> PoolStatus: ...

    def neighbours(self) -> Sequence[MemberStatus]:
        """The other members, as they are seen from here."""
        ...


class AsyncCallService(Protocol):
    """Calls whose answer is fetched later."""

    async def accept(self, request: CallRequest) -> str:
        """The id of a call that is durable and can be polled; whether there is the function is not looked."""
        ...

    async def poll(self, id: str, *, wait_s: float = 0.0) -> AsyncCallResult | None:
        """Where it is, when it has ended or after `wait_s`; None if the id is not known."""
        ...


class FunctionLogReader(Protocol):
    """What functions have printed."""

    def logs(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[FunctionLogLine, None]:
        """What all its workers wrote, in the order of time, or the last `lines` of it.

        With `follow` also what comes, until the function is gone.
        """
        ...
