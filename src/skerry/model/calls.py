"""Calls of functions: the request, the result of a worker, and the report for the caller.

Parameters and results are JSON texts that are not parsed between the caller and the handler: they are passed
on as bytes, so that no number changes. `skerry.functions` runs calls; `skerry.wire` has the names of fields
in a contract.
"""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from skerry.model import errors
from skerry.model.ids import FunctionName

NULL = b"null"
MAX_QOS_CLASS = 255


class CallFailure(enum.StrEnum):
    """Why a call has no result."""

    HANDLER = "HandlerError"  # the handler raised
    RESULT = "ResultError"  # it returned what JSON cannot hold, or too much
    LOAD = "LoadError"  # its code could not be loaded
    TIMEOUT = "Timeout"
    MEMORY = "OutOfMemory"  # its worker was killed for memory
    DIED = "WorkerDied"  # its worker ended in the middle of it
    NO_ROOM = "NoRoom"  # no worker could be had in its time
    GONE = "FunctionGone"  # the function was deleted while the call waited
    INTERRUPTED = "Interrupted"  # the node was restarted in the middle of it
    ABANDONED = "Abandoned"  # its caller left before the end of the response
    INTERNAL = "InternalError"


class CallRequest(msgspec.Struct, frozen=True):
    """One call."""

    function: FunctionName
    params: bytes = NULL  # JSON
    qos_class: int = 0
    max_response_s: float | None = None  # the caller is served by nothing that takes longer
    can_offload: bool = True
    wants_output: bool = False
    is_web: bool = False  # its parameters are an HTTP request (`skerry.model.web_calls`)
    traceparent: str = ""  # the span that it is a part of (`skerry.kit.traces`); empty: it is not traced

    def __post_init__(self) -> None:
        if not 0 <= self.qos_class <= MAX_QOS_CLASS:
            raise errors.Invalid(f"QoS class must be 0 to {MAX_QOS_CLASS}", field="qos_class")


class CallResult(msgspec.Struct, frozen=True):
    """The result of a call by a worker."""

    duration_s: float  # in the handler
    result: bytes = b""  # JSON, if it succeeded
    output: str = ""
    failure: CallFailure | None = None
    error: str = ""  # what went wrong, with the traceback that the author of the function needs


class CallReport(msgspec.Struct, frozen=True):
    """How a call went."""

    answer: CallResult
    response_s: float  # from its arrival to its answer
    is_warm: bool = False
    init_s: float = 0.0  # of the worker, if it was made for this call
    queueing_s: float = 0.0
    offload_s: float = 0.0
    action: str = ""  # what the scheduler did with it
    area: str = ""
    node: str = ""

    @property
    def timed_out_in_queue(self) -> bool:
        """True if its time was over before any worker was handed the call."""
        answer = self.answer
        return answer.failure is CallFailure.TIMEOUT and not answer.duration_s and self.queueing_s > 0


class CallState(enum.StrEnum):
    """Where an async call is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    UNKNOWN = "unknown"  # there is no call of that id

    @property
    def is_pending(self) -> bool:
        return self in (CallState.QUEUED, CallState.RUNNING)


class CodeLoadError(errors.Unprocessable):
    """A function's code could not be loaded; `output` is what it printed meanwhile."""

    slug = "unprocessable"

    def __init__(self, message: str, *, output: str = "", detail: str = "") -> None:
        super().__init__(message, detail=detail)
        self.output = output


class WorkerExited(Exception):
    """A worker ended with calls in it."""

    def __init__(self, failure: CallFailure, error: str, output: str = "") -> None:
        super().__init__(error)
        self.failure = failure
        self.error = error
        self.output = output


class CallWaiter(Protocol):
    """Whoever waits for the result of a worker, as an `asyncio.Future` can be: told once, from the loop."""

    def done(self) -> bool:
        """True if it waits no more."""
        ...

    def set_result(self, result: CallResult, /) -> None: ...

    def set_exception(self, error: Exception, /) -> None:
        """`TimeoutError`, or `WorkerExited` without the cause."""
        ...
