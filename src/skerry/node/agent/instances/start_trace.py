"""The spans of the first start of an instance on this node, in the trace of the request that created it."""

from __future__ import annotations

from skerry.kit import traces
from skerry.kit.traces import SpanRecorder, TraceContext
from skerry.model.statuses import InstanceStatus
from skerry.node.agent.instances.state import LocalInstance, LocalStatus


class StartTrace:
    """A start that is recorded."""

    def __init__(self, recorder: SpanRecorder, parent: TraceContext, copy: LocalInstance, at: float) -> None:
        self._recorder = recorder
        self._parent = parent
        self._span = recorder.begin(parent)
        self._attributes = {"skerry.instance": copy.instance, "skerry.namespace": copy.order.namespace}
        self._at = at

    @classmethod
    def of(cls, copy: LocalInstance, at: float) -> StartTrace | None:
        """None if it is not recorded, or is a restart: the request has nothing to do with that."""
        parent = traces.context_of(copy.order.request_id)
        if traces.recorder is None or parent is None or copy.history.restarts:
            return None
        return cls(traces.recorder, parent, copy, at)

    def step(self, name: str, seconds: float) -> None:
        """A part of it has just ended."""
        self._recorder.end(self._recorder.begin(self._span), self._span, name, seconds)

    def end(self, status: LocalStatus, now: float) -> None:
        """It runs, or has failed."""
        self._recorder.end(
            self._span,
            self._parent,
            "start instance",
            now - self._at,
            attributes=self._attributes,
            error=None if status.status is InstanceStatus.RUNNING else status.reason,
        )
