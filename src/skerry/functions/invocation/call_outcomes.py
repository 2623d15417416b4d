"""A call on its way, and what is noted when it ends: counts, times, history, and the report for its caller.

The same for calls that a task awaits (`skerry.functions.invocation.invoker`) and for those without one
(`skerry.functions.invocation.direct_calls`). All of it is plain numbers in memory, because every call passes
here. Which worker a call gets is decided in `skerry.functions.invocation.dispatcher`.
"""

from __future__ import annotations

import msgspec
import structlog

from skerry.functions.invocation.dispatcher import CallAborted, Dispatcher
from skerry.functions.invocation.metrics import InvocationMetrics
from skerry.functions.invocation.queue import QueuedCall
from skerry.functions.invocation.worker_pool import FunctionWorkers, WorkerSlot
from skerry.kit.clock import Clock
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallResult, WorkerExited
from skerry.model.settings import FunctionSettings

log = structlog.get_logger(__name__)

CANCELLED = "Cancelled"  # its caller has left
OVERLOADED = "Overloaded"


class InvokedCall(QueuedCall):
    """A call from its arrival to its end."""

    __slots__ = ("began", "init_s", "is_warm", "queueing_s", "request", "slot")

    slot: WorkerSlot  # once it has one

    def __init__(
        self, request: CallRequest, group: FunctionWorkers, arrived: float, queue_wait_s: float
    ) -> None:
        most_s = request.max_response_s
        may_wait_s = queue_wait_s if most_s is None or most_s > queue_wait_s else most_s
        super().__init__(group, request.qos_class, arrived, arrived + may_wait_s)
        self.request = request
        self.began = arrived
        self.queueing_s = 0.0
        self.init_s = 0.0
        self.is_warm = True

    def assign(self, slot: WorkerSlot, now: float) -> None:
        """It has got its worker after a wait."""
        self.slot = slot
        self.began = now
        waited_s = now - self.arrived
        if slot.is_fresh:
            self.is_warm = False
            self.init_s = min(slot.worker.init_s, waited_s)
        self.queueing_s = waited_s - self.init_s

    @property
    def within_s(self) -> float:
        """How long its worker has for it, from its begin."""
        within_s, most_s = self.group.timeout_s, self.request.max_response_s
        return within_s if most_s is None else min(within_s, self.arrived + most_s - self.began)


class CallOutcomes:
    """Notes how calls of a node went."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        metrics: InvocationMetrics,
        settings: FunctionSettings,
        clock: Clock,
        node: str,
    ) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._settings = settings
        self._monotonic = clock.monotonic
        self._area = settings.area
        self._node = node

    def note_wait(self, call: InvokedCall) -> None:
        """It has waited, and has a worker now."""
        self._metrics.queueing.add(call.queueing_s)
        if call.slot.is_fresh:
            call.slot.is_fresh = False
            call.group.cold += 1
            call.group.history.cold += 1
            self._metrics.init.add(call.init_s)

    def note_refused(self, group: FunctionWorkers) -> None:
        """Too many wait already."""
        _count(group, OVERLOADED)
        group.history.refused += 1

    def finish(self, call: InvokedCall, answer: CallResult) -> CallReport:
        """The worker has answered; it is free for the next call."""
        now = self._monotonic()
        group = call.group
        run_s, total_s = now - call.began, now - call.arrived
        if answer.failure is None:
            group.succeeded += 1
        elif answer.failure is CallFailure.ABANDONED:
            _count(group, CANCELLED)
        else:
            answer = self._note_failure(call, answer, run_s)
        self._dispatcher.left(call.slot, now)
        group.run.add(run_s)
        group.handler.add(answer.duration_s)
        group.run_total_s += run_s
        self._metrics.duration.add(answer.duration_s)
        group.history.add((now, call.queueing_s, call.init_s, answer.duration_s, total_s, answer.failure, ""))
        return CallReport(
            answer, total_s, call.is_warm, call.init_s, call.queueing_s, 0.0, "", self._area, self._node
        )

    def broken(self, call: InvokedCall, error: BaseException) -> CallResult:
        """What to answer if the worker does not; it is not called again. A cancellation is raised again."""
        if not isinstance(error, Exception):
            self.note_cancelled(call)
            raise error
        self._dispatcher.pool.retire(call.slot)
        run_s = self._monotonic() - call.began
        if isinstance(error, WorkerExited):
            if self._dispatcher.is_closed:
                return CallResult(
                    run_s, b"", error.output, CallFailure.INTERRUPTED, "the node stopped meanwhile"
                )
            return CallResult(run_s, b"", error.output, error.failure, error.error)
        log.error("worker.call_failed", function=call.group.name, error=repr(error), exc_info=error)
        text = "the call failed inside the node; its log says why"
        return CallResult(run_s, failure=CallFailure.INTERNAL, error=text)

    def note_cancelled(self, call: InvokedCall) -> None:
        """Its caller has left. The handler may still run, so its worker gets no other call."""
        self._dispatcher.pool.retire(call.slot)
        _count(call.group, CANCELLED)
        self._dispatcher.left(call.slot, self._monotonic())

    def _note_failure(self, call: InvokedCall, answer: CallResult, run_s: float) -> CallResult:
        group, request = call.group, call.request
        assert answer.failure is not None
        _count(group, answer.failure)
        group.history.failed += 1
        if answer.failure is not CallFailure.TIMEOUT:
            return answer
        self._dispatcher.pool.retire(call.slot)  # the handler may go on in there
        return msgspec.structs.replace(
            answer,
            error=f"the call was ended after {call.queueing_s + call.init_s + run_s:.3f} s: "
            f"{call.queueing_s:.3f} s in the queue, {call.init_s:.3f} s for the start of a worker, "
            f"{run_s:.3f} s running; its function may run {group.timeout_s:g} s"
            + (
                f", its caller waits {request.max_response_s:g} s"
                if request.max_response_s is not None
                else ""
            ),
        )

    def unserved(self, call: InvokedCall, ended: CallAborted) -> CallReport:
        """The report of a call that never came to a worker."""
        now = self._monotonic()
        waited_s = now - call.arrived
        failure, error, group = ended.failure, ended.error, call.group
        if ended.is_late:
            most_s = call.request.max_response_s
            if most_s is not None and most_s <= self._settings.queue_wait_s:
                failure = CallFailure.TIMEOUT
            error = f"the call was ended after {waited_s:.3f} s, all of it in the queue: {error}"
        _count(group, failure)
        group.history.failed += 1
        group.history.add((now, waited_s, 0.0, 0.0, waited_s, failure, ""))
        self._metrics.queueing.add(waited_s)
        answer = CallResult(0.0, b"", ended.output, failure, error)
        return CallReport(answer, waited_s, queueing_s=waited_s, area=self._area, node=self._node)


def _count(group: FunctionWorkers, outcome: str) -> None:
    group.failed[outcome] = group.failed.get(outcome, 0) + 1
