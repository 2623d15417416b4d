"""Request and reply bodies of a container worker. Pure.

The format is Serverledge's, so that images for it run here: `Params` and the like in requests, `Success`,
`Result` and `Output` in replies. Parameters are passed unchanged, and so is the JSON in `Result`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.kit import json_codec
from skerry.model.calls import NULL, CallFailure, CallResult
from skerry.model.settings import FunctionSettings

_OK: Final = 200
_MAX_QUOTED: Final = 2000  # of an invalid body, in an error
_MAX_OVERHEAD: Final = 64 * 1024  # of a body: all but result and output


class _Reply(msgspec.Struct, rename="pascal"):
    """Missing fields are empty."""

    success: bool = False
    result: str | None = ""
    output: str | None = ""
    error: str | None = ""


def request(params: bytes, *, wants_output: bool) -> bytes:
    """The body of a call with `params`, which are JSON."""
    return b'{"Command":null,"Params":%b,"Handler":"","HandlerDir":"","ReturnOutput":%b}' % (
        params or NULL,
        b"true" if wants_output else b"false",
    )


def max_reply(settings: FunctionSettings) -> int:
    """The size limit of a body whose result and output have their maximum sizes: they are JSON strings in it,
    in which every quote takes a second byte."""
    return 2 * (settings.max_result_bytes + settings.max_output_bytes) + _MAX_OVERHEAD


def reply_too_large(settings: FunctionSettings, duration_s: float) -> CallResult:
    """The result of a call whose reply is over the limit."""
    return CallResult(
        duration_s,
        failure=CallFailure.RESULT,
        error=f"the reply is too long; a result may have {settings.max_result_bytes} bytes "
        f"(functions.max_result_bytes) and output {settings.max_output_bytes} (functions.max_output_bytes)",
    )


def parse_reply(
    status: int, body: bytes, *, duration_s: float, wants_output: bool, settings: FunctionSettings
) -> CallResult:
    """The result of the call whose reply has `status` and `body`."""
    if status != _OK:
        return _failed(duration_s, CallFailure.HANDLER, f"it returned HTTP status {status}: {_quoted(body)}")
    try:
        reply = json_codec.decode(body, _Reply)
    except json_codec.InvalidJson as error:
        example = '{"Success": true, "Result": "{}", "Output": ""}'
        message = f"it must return JSON such as {example}, and did not: {error}; it returned {_quoted(body)}"
        return _failed(duration_s, CallFailure.RESULT, message)
    output = _cut(reply.output or "", settings.max_output_bytes)
    if not reply.success:
        reason = reply.error or "it reported a failure without a reason"
        return _failed(duration_s, CallFailure.HANDLER, reason, output)
    result = _to_json(reply.result or "")
    if len(result) > settings.max_result_bytes:
        return _failed(
            duration_s,
            CallFailure.RESULT,
            f"the result has {len(result)} bytes, and the limit is {settings.max_result_bytes}; "
            "see functions.max_result_bytes",
            output,
        )
    return CallResult(duration_s, result=result, output=output if wants_output else "")


def _to_json(text: str) -> bytes:
    """The JSON in `text`; other text becomes a JSON string, and no text null."""
    data = text.encode()
    try:
        json_codec.decode(data, msgspec.Raw)  # validated only
    except json_codec.InvalidJson:
        return json_codec.encode(text) if text.strip() else NULL
    return data


def _failed(duration_s: float, failure: CallFailure, error: str, output: str = "") -> CallResult:
    return CallResult(duration_s, failure=failure, error=error, output=output)


def _cut(text: str, most: int) -> str:
    data = text.encode()
    if len(data) <= most:
        return text
    return f"{data[:most].decode(errors='ignore')}\n[the rest, {len(data) - most} bytes, was cut off]"


def _quoted(body: bytes) -> str:
    return repr(body[:_MAX_QUOTED].decode(errors="replace")) if body.strip() else "nothing"
