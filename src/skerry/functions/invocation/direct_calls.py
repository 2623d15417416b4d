"""Direct calls: without a task, a future or a timer of their own, because a warm call costs little else.

`begin` hands a call to a free worker, or to the queue; the worker's reply then settles the call, gives the
worker its next one, and reports to the caller, all in the callback that has read the reply. Only calls of
functions whose workers can do that (`ports.DirectWorker`) are served so, and only while they go well: one
that ends without a reply, or whose worker is not as it should be, continues as a task, by the same code as
calls of `skerry.functions.invocation.invoker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from skerry.functions.invocation.call_outcomes import CallOutcomes, InvokedCall
from skerry.functions.invocation.dispatcher import CallAborted, Dispatcher
from skerry.functions.invocation.worker_pool import FunctionWorkers, WorkerSlot
from skerry.kit import tasks
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CallReport, CallRequest, CallResult

log = structlog.get_logger(__name__)

# Gets the report, or what `Invoker.invoke` would raise; from the event loop, and must not raise.
CallDone = Callable[[CallReport | errors.SkerryError], None]
# From a call and a worker that is perhaps not fit for it to its report, in a task.
Continue = Callable[["DirectCall", WorkerSlot], Coroutine[Any, Any, CallReport]]


class DirectCalls:
    """The direct calls of a node."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        outcomes: CallOutcomes,
        clock: Clock,
        *,
        queue_wait_s: float,
        continue_call: Continue,
    ) -> None:
        self.dispatcher = dispatcher
        self.outcomes = outcomes
        self.clock = clock
        self.monotonic = clock.monotonic
        self._queue_wait_s = queue_wait_s
        self._continue = continue_call
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, request: CallRequest, group: FunctionWorkers, done: CallDone) -> DirectCall | None:
        """Begin a call; None, with nothing done, if it needs a task. Raises `Overloaded`, `Unavailable`."""
        if not group.has_direct_workers:
            return None
        call = DirectCall(self, request, group, self.monotonic(), self._queue_wait_s, done)
        slot = self.dispatcher.take(group)
        if slot is not None:
            call.start(slot)
            return call
        try:
            self.dispatcher.enqueue(call)
        except errors.Overloaded:
            self.outcomes.note_refused(group)
            raise
        except CallAborted:
            return None
        return call

    def continue_call(self, call: DirectCall, slot: WorkerSlot) -> None:
        """Its worker is not as it should be."""
        self._spawn(call, self._continue(call, slot))

    def end_abnormally(self, call: DirectCall, error: Exception) -> None:
        """Its worker has not answered."""
        self._spawn(call, self._explain(call, error))

    async def _explain(self, call: DirectCall, error: Exception) -> CallReport:
        worker = call.slot.direct
        assert worker is not None, "it has begun the call"
        began = self.clock.now() - (self.monotonic() - call.began)
        try:
            answer = await worker.explain_end(error, began=began, within_s=call.within_s)
        except BaseException as cause:  # noqa: BLE001 - distinguished there, and a cancellation goes on
            answer = self.outcomes.broken(call, cause)
        return self.outcomes.finish(call, answer)

    def _spawn(self, call: DirectCall, work: Coroutine[Any, Any, CallReport]) -> None:
        task = asyncio.get_running_loop().create_task(self._report(call, work))
        call.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _report(self, call: DirectCall, work: Coroutine[Any, Any, CallReport]) -> None:
        try:
            outcome: CallReport | errors.SkerryError = await work
        except errors.SkerryError as error:
            outcome = error
        except asyncio.CancelledError:
            call.report(errors.Unavailable("the node is stopping; call again when it is back"))
            raise
        except Exception as error:
            log.error("call.failed", function=call.group.name, exc_info=error)
            outcome = errors.Internal("the call failed inside the node; its log says why")
        call.report(outcome)

    async def close(self) -> None:
        await tasks.cancel_and_wait(list(self._tasks))


class DirectCall(InvokedCall):
    """One direct call: as `QueuedCall` it waits for a worker, as `CallWaiter` for the worker's reply."""

    __slots__ = ("_calls", "_done", "_is_over", "_number", "task")

    def __init__(
        self,
        calls: DirectCalls,
        request: CallRequest,
        group: FunctionWorkers,
        arrived: float,
        queue_wait_s: float,
        done: CallDone,
    ) -> None:
        super().__init__(request, group, arrived, queue_wait_s)
        self._calls = calls
        self._done = done
        self._is_over = False
        self._number = 0  # of the call in its worker; 0: it is in none
        self.task: asyncio.Task[None] | None = None  # once it continues as one

    def start(self, slot: WorkerSlot) -> None:
        """Hand it to `slot`, which was taken for it just now."""
        worker = slot.direct
        assert worker is not None, "it takes direct calls"
        self.slot = slot
        self._number = worker.begin_call(
            self.request.params,
            wants_output=self.request.wants_output,
            within_s=self.within_s,
            waiter=self,
        )

    def cancel(self) -> None:
        """Its caller has left: end the call. `done` is not called any more."""
        if self._is_over:
            return
        self._is_over = True
        calls = self._calls
        if self.task is not None:
            self.task.cancel()
        elif self._number:
            worker = self.slot.direct
            assert worker is not None, "it has begun the call"
            worker.abandon_call(self._number)
            calls.outcomes.note_cancelled(self)
        else:
            calls.dispatcher.queue.remove(self)

    def report(self, outcome: CallReport | errors.SkerryError) -> None:
        if not self._is_over:
            self._is_over = True
            self._done(outcome)

    # From the queue

    def grant(self, slot: WorkerSlot) -> None:
        now = self._calls.monotonic()
        if slot.direct is None or not slot.is_open or not slot.direct.is_alive or now >= self.limit:
            self._calls.continue_call(self, slot)
            return
        self.assign(slot, now)
        self._calls.outcomes.note_wait(self)
        self.start(slot)

    def abort(self, reason: Exception) -> None:
        assert isinstance(reason, CallAborted), "nothing else ends a wait"
        self.report(self._calls.outcomes.unserved(self, reason))

    # From the worker

    def done(self) -> bool:
        return self._is_over

    def set_result(self, result: CallResult, /) -> None:
        self.report(self._calls.outcomes.finish(self, result))

    def set_exception(self, error: Exception, /) -> None:
        self._calls.end_abnormally(self, error)
