"""Interfaces of functions that this dialect uses, for which tests have fakes.

`skerry.functions` implements them; a `FunctionService` is its registry together with those that must know of
a change before it is acknowledged. Reads are from memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.continuum.cloud_calls import CloudCallCounts
from skerry.functions.continuum.code_replication import CodeCopies, ReplicationStatus
from skerry.functions.invocation.direct_calls import CallDone
from skerry.functions.invocation.invoker import PoolStatus
from skerry.functions.registry.registry import NewFunction
from skerry.model.calls import CallReport, CallRequest
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.members import MemberStatus
from skerry.node.workers.function_logs import FunctionLogLine


class FunctionService(Protocol):
    """The registry of functions. A change is durable when it returns, and applies to all calls that start
    later."""

    async def create(self, new: NewFunction, *, actor: str) -> Function:
        """Raises `AlreadyExists`, `NotFound` for the runtime, and `Invalid`."""
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
        """The actual runtime, for people: `Python 3.11.2`. Raises `Unavailable` if this process has none."""
        ...

    def copies(self, function: Function) -> CodeCopies | None:
        """How many members have its code; None if it has no code, or if that is not known here."""
        ...

    def replication(self) -> ReplicationStatus | None:
        """Functions whose code has too few copies; None if that is not known here."""
        ...


class BegunCall(Protocol):
    """A call without a task."""

    def cancel(self) -> None:
        """Its caller has left: end the call, and report nothing."""
        ...


class InvocationService(Protocol):
    """Synchronous calls, and their workers."""

    async def invoke(self, request: CallRequest) -> CallReport:
        """Raises `NotFound`, `Overloaded`, `Unavailable`; a failure of the function is in the report."""
        ...

    def begin(self, request: CallRequest, done: CallDone) -> BegunCall | None:
        """The same without a task; None, with nothing done, if it takes `invoke`.

        `done` gets the report, or what `invoke` raises, from the event loop. Raises `Overloaded`,
        `Unavailable`.
        """
        ...

    async def prewarm(self, name: str, instances: int, *, force: bool = False) -> int: ...

    def status(self) -> PoolStatus: ...

    def neighbours(self) -> Sequence[MemberStatus]:
        """The other members, as known here."""
        ...


class CallsReader(Protocol):
    """Calls in the whole cloud."""

    async def read(self) -> CloudCallCounts: ...


class AsyncCallService(Protocol):
    """Async calls."""

    async def accept(self, request: CallRequest) -> str:
        """The id of a call, which is durable and can be polled; whether the function exists is not
        checked."""
        ...

    async def poll(self, id: str, *, wait_s: float = 0.0) -> AsyncCallResult | None:
        """Its state when it has ended, or after `wait_s`; None if the id is not known."""
        ...


class FunctionLogReader(Protocol):
    """Output of functions."""

    def logs(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[FunctionLogLine, None]:
        """The output of all its workers in the order of time, or the last `lines` of it.

        With `follow` also new output, until the function is deleted.
        """
        ...
