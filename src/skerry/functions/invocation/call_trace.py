"""The spans of one call on this member: the call, its time in the queue, the start of a worker, its run.

Created only for calls that are traced. Times are those that the invoker has measured anyway; all spans are
recorded at the end, so that they nest exactly.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from skerry.kit import traces
from skerry.kit.traces import Attribute, SpanRecorder, TraceContext, TraceSpan
from skerry.model.calls import CallRequest, CallResult
from skerry.model.function_names import namespace_of, plain_name

_NANOSECONDS = 1_000_000_000


class CallTrace:
    """A call that is traced. `run` is the span of the handler, which the function gets."""

    __slots__ = ("_call", "_name", "_parent", "_recorder", "run")

    def __init__(self, recorder: SpanRecorder, request: CallRequest, parent: TraceContext) -> None:
        self._recorder = recorder
        self._parent = parent
        self._name = request.function
        self._call = recorder.begin(parent)
        self.run = recorder.begin(self._call)

    @classmethod
    def of(cls, request: CallRequest) -> CallTrace | None:
        """None if the call is not traced here."""
        parent = traces.parse_traceparent(request.traceparent)
        if traces.recorder is None or parent is None or not parent.is_sampled:
            return None
        return cls(traces.recorder, request, parent)

    def end(
        self,
        answer: CallResult,
        *,
        total_s: float,
        queueing_s: float,
        init_s: float,
        is_warm: bool,
        worker: str,
        phases: Sequence[tuple[str, float]] = (),
    ) -> None:
        """It has just ended, after `total_s` here; `phases` are those of the start of its worker."""
        end_ns = time.time_ns()
        start_ns = end_ns - _ns(total_s)
        started_ns = min(start_ns + _ns(queueing_s), end_ns)
        began_ns = min(started_ns + _ns(init_s), end_ns)
        error = None
        if answer.failure is not None:
            error = f"{answer.failure.value}: {answer.error.rstrip().rpartition(chr(10))[2]}"
        attributes: dict[str, Attribute] = {
            "faas.name": plain_name(self._name),
            "faas.coldstart": not is_warm,
            "skerry.namespace": namespace_of(self._name),
        }
        if worker:
            attributes["faas.instance"] = worker
        self._add(self._call, self._parent, f"invoke {self._name}", start_ns, end_ns, attributes, error)
        if queueing_s > 0:
            self._child("queue", start_ns, started_ns)
        if init_s > 0:
            start = self._child("start worker", started_ns, began_ns)
            at_ns = started_ns
            for name, seconds in phases:
                until_ns = min(at_ns + _ns(seconds), began_ns)
                self._add(self._recorder.begin(start), start, name, at_ns, until_ns)
                at_ns = until_ns
        if worker:
            self._add(self.run, self._call, f"run {self._name}", began_ns, end_ns, {}, error)

    def _child(self, name: str, start_ns: int, end_ns: int) -> TraceContext:
        context = self._recorder.begin(self._call)
        self._add(context, self._call, name, start_ns, end_ns)
        return context

    def _add(
        self,
        context: TraceContext,
        parent: TraceContext,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: dict[str, Attribute] | None = None,
        error: str | None = None,
    ) -> None:
        self._recorder.add(
            TraceSpan(
                context, parent.span_id, name, traces.INTERNAL, start_ns, end_ns, attributes or {}, error
            )
        )


def _ns(seconds: float) -> int:
    return max(0, int(seconds * _NANOSECONDS))
