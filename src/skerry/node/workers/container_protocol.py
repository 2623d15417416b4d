"""What is said to the worker of an image, and what its answer means. Pure.

The words are Serverledge's, so that images made for it run here: `Params` and the like to it, `Success`,
`Result` and `Output` from it. Parameters are carried as they are, and so is the JSON in `Result`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.kit import json_codec
from skerry.model.calls import NULL, CallFailure, CallResult
from skerry.model.settings import FunctionSettings

_OK: Final = 200
_MAX_SHOWN: Final = 2000  # of a body that is no answer
_MAX_REST: Final = 64 * 1024  # of a body: all but result and output


class _Reply(msgspec.Struct, rename="pascal"):
    """What is not there is as if it were empty."""

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
    """How long a body may be whose result and output are as long as they may be: in it they are texts, and
    every quote in them takes a second byte."""
    return 2 * (settings.max_result_bytes + settings.max_output_bytes) + _MAX_REST


def too_much(settings: FunctionSettings, duration_s: float) -> CallResult:
    """To a call whose reply is longer than that."""
    return CallResult(
        duration_s,
        failure=CallFailure.RESULT,
        error=f"the reply is too long; a result may have {settings.max_result_bytes} bytes "
        f"(functions.max_result_bytes) and output {settings.max_output_bytes} (functions.max_output_bytes)",
    )


def answer(
    status: int, body: bytes, *, duration_s: float, wants_output: bool, settings: FunctionSettings
) -> CallResult:
    """What `body`, which came with `status`, says of the call."""
    if status != _OK:
        return _failed(
            duration_s, CallFailure.HANDLER, f"it answered with HTTP status {status}: {_shown(body)}"
        )
    try:
        reply = json_codec.decode(body, _Reply)
    except json_codec.InvalidJson as error:
        wanted = '{"Success": true, "Result": "{}", "Output": ""}'
        said = f"it must answer with JSON such as {wanted}, and did not: {error}; it said {_shown(body)}"
        return _failed(duration_s, CallFailure.RESULT, said)
    output = _cut(reply.output or "", settings.max_output_bytes)
    if not reply.success:
        why = reply.error or "it answered that the call did not succeed, without saying why"
        return _failed(duration_s, CallFailure.HANDLER, why, output)
    result = _as_json(reply.result or "")
    if len(result) > settings.max_result_bytes:
        return _failed(
            duration_s,
            CallFailure.RESULT,
            f"the result has {len(result)} bytes, and may have {settings.max_result_bytes}; "
            "see functions.max_result_bytes",
            output,
        )
    return CallResult(duration_s, result=result, output=output if wants_output else "")


def _as_json(text: str) -> bytes:
    """The JSON in `text`; a text that is none stands for itself, and no text for null."""
    data = text.encode()
    try:
        json_codec.decode(data, msgspec.Raw)  # checked, and not made anything of
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


def _shown(body: bytes) -> str:
    return repr(body[:_MAX_SHOWN].decode(errors="replace")) if body.strip() else "nothing"
