"""The form that tries a function: one call, with its result, its output and the times of its phases."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console.actions import ActionForm
from skerry.console.components import Badge, Tone
from skerry.console.context import ConsoleContext
from skerry.console.pages.functions import FunctionPath, call_command, find_function
from skerry.console.phases import PhaseBar, phase_bars
from skerry.console.rendering import HTML
from skerry.console.tables import ObjectQuery
from skerry.functions.invocation.call_history import FinishedCall
from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.calls import CallReport, CallRequest
from skerry.model.functions import Function
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

_MAX_SHOWN = 64 * 1024
_TRIED = {"hx-trigger-after-swap": '{"live:calls": null}'}  # the list of calls has one more


class CallForm(ActionForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    parameters: Annotated[str, Meta(max_length=1024 * 1024)] = "{}"


class CallResultView(msgspec.Struct, frozen=True):
    """How the call went; texts that are not there are empty."""

    outcome: Badge
    command: str
    where: str = ""
    result: str = ""
    error: str = ""
    output: str = ""
    bar: PhaseBar | None = None


@endpoint(
    "POST",
    "/console/functions/{name}/call",
    summary="Call a function",
    media=HTML,
    streams=True,  # a call has a time limit of its own
    raises=(errors.NotFound,),
)
async def call(
    context: ConsoleContext, call: RequestContext, path: FunctionPath, query: ObjectQuery, body: CallForm
) -> Response:
    """Shows what became of it, also of a call that was refused."""
    function = find_function(context, path.name, query)
    view = await _tried(context, function, body.parameters)
    return context.renderer.fragment("call_result.html", _TRIED, view=view)


async def _tried(context: ConsoleContext, function: Function, parameters: str) -> CallResultView:
    command = call_command(function, parameters)
    try:
        request = CallRequest(function.name, read_parameters(parameters), wants_output=True)
        report = await context.function_calls.invoke(request)
    except errors.SkerryError as error:
        return CallResultView(Badge("not called", Tone.WARNING), command, error=error.message)
    return result_view(report, command)


def read_parameters(text: str) -> bytes:
    """The parameters as they are sent: a JSON object. Raises `Invalid`."""
    data = text.strip().encode()
    try:
        json_codec.decode(data, dict[str, msgspec.Raw])
    except json_codec.InvalidJson:
        raise errors.Invalid('parameters are a JSON object, such as {"name": "world"}') from None
    return data


def result_view(report: CallReport, command: str) -> CallResultView:
    """A call that has ended."""
    answer = report.answer
    rest = report.response_s - report.queueing_s - report.init_s - answer.duration_s
    ended = FinishedCall(
        0.0,
        report.queueing_s,
        report.init_s,
        answer.duration_s,
        max(0.0, rest),
        answer.failure,
        report.node,
    )
    return CallResultView(
        Badge("ok", Tone.GOOD) if answer.failure is None else Badge(answer.failure, Tone.BAD),
        command,
        where=f"on {report.node}, {'warm' if report.is_warm else 'cold'}" if report.node else "",
        result=_shortened(_pretty(answer.result)) if answer.failure is None else "",
        error=_shortened(answer.error),
        output=_shortened(answer.output),
        bar=phase_bars([ended])[0],
    )


def _pretty(result: bytes) -> str:
    try:
        return msgspec.json.format(result, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return result.decode("utf-8", "replace")


def _shortened(text: str) -> str:
    if len(text) <= _MAX_SHOWN:
        return text
    return f"{text[:_MAX_SHOWN]}\n… and {len(text) - _MAX_SHOWN:,} more characters"


ENDPOINTS = (call,)
