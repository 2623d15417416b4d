"""Interfaces that the worker pool uses: the host of workers, and the lookup of functions.

`skerry.node.workers` is the real `WorkerHost`; tests have one that runs nothing. The pool decides when a
worker is started, which calls it gets and when it ends; a host decides nothing and counts no resources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from skerry.kit.response_stream import ResponseStream
from skerry.model.calls import CallResult, CallWaiter
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.web_calls import WebResponseHead


class FunctionWorker(Protocol):
    """One process that has a function loaded and takes calls of it."""

    @property
    def id(self) -> str: ...

    @property
    def init_s(self) -> float:
        """How long it took from the order to start it until it was ready for a call."""
        ...

    @property
    def runtime(self) -> str:
        """What really runs, for people: `Python 3.11.2`."""
        ...

    @property
    def is_alive(self) -> bool:
        """False from the moment it is known that no further call would be answered."""
        ...

    @property
    def start_phases(self) -> Sequence[tuple[str, float]]:
        """What it did until it was ready, in order, and for how many seconds; as far as that is known."""
        ...

    async def call(
        self, params: bytes, *, wants_output: bool, within_s: float, traceparent: str = ""
    ) -> CallResult:
        """Run the handler once; never more than `max_concurrency` of these at once. The handler gets the
        `traceparent`, if there is one.

        After `within_s` the answer is one with `CallFailure.TIMEOUT`. Raises `WorkerExited` as soon as the
        worker has ended, with the cause. If the caller is cancelled, this ends at once. After a time-out or a
        cancellation the handler may still run: the pool hands the worker no further call, lets the others in
        it end, and closes it.
        """
        ...

    async def call_web(
        self, request: bytes, response: ResponseStream[WebResponseHead], *, within_s: float
    ) -> CallResult:
        """The same with an HTTP request (`skerry.model.web_calls`), of a function that takes them.

        The response goes to `response` as it comes, and the result is empty. `response` may be abandoned: the
        call then ends soon, or is cancelled.
        """
        ...

    def on_end(self, ended: Callable[[], None]) -> None:
        """Call `ended` from the event loop, once, when the worker has ended without `close`; at once if it
        already has.

        The worker still has to be closed.
        """
        ...

    async def close(self) -> None:
        """End it, with whatever runs in it; returns when nothing of it is left. May be repeated.

        Calls that are in it raise `WorkerExited`.
        """
        ...


@runtime_checkable
class DirectWorker(FunctionWorker, Protocol):
    """A worker that also takes calls without a task that awaits each."""

    def begin_call(self, params: bytes, *, wants_output: bool, within_s: float, waiter: CallWaiter) -> int:
        """Hand over a call, as `call` does; the worker must be alive. Returns its number.

        `waiter` is told later, from the event loop: the result, or an error for `explain_end`.
        """
        ...

    async def explain_end(self, error: Exception, *, began: float, within_s: float) -> CallResult:
        """The result of a call that ended with `error` and began at that wall time; raises `WorkerExited`
        with the cause, as `call` does."""
        ...

    def abandon_call(self, number: int) -> None:
        """Nobody waits for this call any more; as if the caller of `call` was cancelled."""
        ...


class WorkerHost(Protocol):
    """Starts workers."""

    async def spawn(self, function: Function, code: Path | None) -> FunctionWorker:
        """A worker that has loaded `function` from the folder `code`.

        Raises `CodeLoadError` if the function is to blame, `ResourcesExhausted` or `Unavailable` if not.
        Nothing is left behind if this fails or is cancelled.
        """
        ...

    async def prepare(self, function: Function, *, force: bool) -> None:
        """Fetch what a start would need, such as an image; with `force`, check for a newer one."""
        ...

    def describe(self, runtime_kind: str) -> str:
        """What runs for functions of this kind: `Python 3.11.2`."""
        ...


class LocalWorkerHost(WorkerHost, Protocol):
    """The workers of this machine, with what is kept here of each function."""

    def provisional(self, name: str, image: str) -> AbstractAsyncContextManager[None]:
        """Where a function of `image` is tried and registered: if that fails, images are as they were."""
        ...

    def forget(self, name: FunctionName) -> None:
        """The function is deleted: remove the output of its workers."""
        ...


class FunctionLookup(Protocol):
    """Which functions there are, from memory."""

    def get(self, name: str) -> Function | None:
        """The function of that name; the same object until it is updated."""
        ...

    def code_folder(self, function: Function) -> Path | None:
        """The folder of its unpacked code; None if it has an image instead."""
        ...
