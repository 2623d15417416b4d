"""Records of async calls: the request, and the report or the reason why there is none.

Pure. Times in a report of an async call count from its acceptance, whichever process it ran in. The bytes are
kept by `skerry.store.sqlite.calls`; `skerry.functions.asynchronous.runner` runs the calls.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from skerry.kit import ulid
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallResult, CallState

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(CallRequest).decode
_decode_report = msgspec.msgpack.Decoder(CallReport).decode

INTERRUPTED: Final = (
    "the node was stopped while this call ran, and it is not known how far it came; call again if that does "
    "no harm"
)
GONE: Final = "the function was deleted before this call could be run"
TOO_LATE: Final = "it waited longer than the requested response time, and was not run"
BROKEN: Final = "the call could not be run, by a fault of this node; its log has the reason"


class AsyncCallResult(msgspec.Struct, frozen=True):
    """Where a call is; with its report when it is done or failed."""

    state: CallState
    report: CallReport | None = None


def new_id(request: CallRequest, now: float) -> str:
    """Of a call that is accepted now, on a node that is alone."""
    return f"{request.function}-{ulid.new_id(now)}"


def pack_request(request: CallRequest) -> bytes:
    return _encode(request)


def unpack_request(body: bytes) -> CallRequest:
    return _decode_request(body)


def pack_report(report: CallReport) -> bytes:
    return _encode(report)


def unpack(state: CallState, body: bytes) -> AsyncCallResult:
    """The answer to a poll of a call that has ended."""
    has_report = state in (CallState.DONE, CallState.FAILED)
    return AsyncCallResult(state, _decode_report(body) if has_report else None)


def failed(failure: CallFailure, error: str) -> CallReport:
    """The report of a call that no worker answered."""
    return CallReport(CallResult(0.0, failure=failure, error=error), response_s=0.0)


def with_remaining_time(request: CallRequest, waited_s: float) -> CallRequest | None:
    """The request with its remaining time; None if there is none left."""
    if request.max_response_s is None:
        return request
    left_s = request.max_response_s - waited_s
    return replace(request, max_response_s=left_s) if left_s > 0 else None


def count_from_acceptance(report: CallReport, *, waited_s: float, total_s: float) -> CallReport:
    """The report of a call that waited before it was run."""
    return replace(report, response_s=total_s, queueing_s=report.queueing_s + waited_s)


def queue_name(request: CallRequest) -> str:
    """Calls of one line wait behind each other; lines take turns."""
    return f"{request.qos_class}/{request.function}"


def fit(report: CallReport, max_bytes: int) -> tuple[CallState, bytes]:
    """How it ended, and the report; without its result, and failed for that, if it cannot be kept."""
    body = pack_report(report)
    if len(body) <= max_bytes:
        return CallState.DONE if report.answer.failure is None else CallState.FAILED, body
    why = (
        f"the result and output of {len(body)} bytes are more than the {max_bytes} that are kept of one call "
        "(functions.result_bytes); return less"
    )
    answer = CallResult(report.answer.duration_s, failure=CallFailure.RESULT, error=why)
    return CallState.FAILED, pack_report(replace(report, answer=answer))
