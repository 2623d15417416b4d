"""Calls of functions: parameters, reports and error messages, for `skerry fn`.

Parameters and results are JSON that is passed on unchanged, so that no number loses precision.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from skerry.cli import output as printing
from skerry.cli import watch
from skerry.client.api import ApiClient, JsonObject
from skerry.client.errors import ApiError

PENDING: Final = frozenset({"queued", "running"})
_SLOW_S: Final = 1.0
# Texts of the contract, which has no codes.
_INVALID_RUNTIME: Final = "Invalid runtime."
_FORBIDDEN: Final = 403
_LONG_POLL: Final = "10s"
_PAUSE_S: Final = 0.1  # between two


class FunctionCallFailed(click.ClickException):
    """The function, or its runtime, produced no result."""

    exit_code = 1


def params(given: tuple[str, ...], document: str | None) -> bytes:
    """The parameters of `-p` or `--json` as a JSON object; null if there are none."""
    if given and document is not None:
        raise click.UsageError("Give parameters either with -p or with --json.")
    if document is not None:
        return _object(_text(document))
    named: dict[str, Any] = {}
    for each in given:
        name, colon, value = each.partition(":")
        if not name or not colon:
            raise click.UsageError(
                f"-p '{each}' is not a parameter; write name:value, or name:=JSON as in n:=3."
            )
        named[name] = _typed(each, value[1:]) if value.startswith("=") else value
    return json.dumps(named).encode() if named else b"null"


def _typed(given: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise click.UsageError(f"-p '{given}': the value after := is not JSON ({error}).") from None


def _text(document: str) -> str:
    """FILE, - for standard input, or the JSON itself."""
    if document.lstrip().startswith("{"):
        return document
    try:
        return sys.stdin.read() if document == "-" else Path(document).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--json {document}: {error}; a JSON object begins with '{{'.") from None


def _object(text: str) -> bytes:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise click.UsageError(f"The parameters are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.UsageError('The parameters must be a JSON object, such as {"n": 3}.')
    return text.strip().encode()


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def body(params: bytes, **more: Any) -> bytes:
    """The body of a call."""
    rest = json.dumps(more).encode()
    return b'{"Params":%b%b' % (params, b"," + rest[1:] if more else b"}")


def show(name: str, report: JsonObject, output: str, *, with_printed: bool) -> None:
    """The result on standard output; the output of the function and errors on standard error."""
    if output == "json":
        printing.as_json(report)
    elif with_printed or not report["Success"]:
        click.echo(report["Output"], nl=bool(report["Output"]) and report["Output"][-1] != "\n", err=True)
    if not report["Success"]:
        raise failed(name, report, is_reported=output == "json")
    if output != "json":
        click.echo(report["Result"])


def failed(name: str, report: JsonObject, *, is_reported: bool = False) -> FunctionCallFailed:
    """The first line of the error is the message; the traceback is printed before."""
    text = str(report["Error"]).strip() or "no reason given"
    line, _, rest = text.partition("\n")
    if rest and not is_reported:
        click.echo(rest.strip("\n"), err=True)
    return FunctionCallFailed(f"{name} failed ({report['ErrorType'] or 'unknown'}): {line}")


@contextmanager
def print_if_slow(text: str) -> Iterator[None]:
    """Print `text` on standard error if the block takes more than a second."""
    timer = threading.Timer(_SLOW_S, click.echo, (text,), {"err": True})
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def find(server: ApiClient, name: str) -> JsonObject | None:
    try:
        return server.get("function", name)
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def require_function(server: ApiClient, name: str) -> JsonObject:
    found = find(server, name)
    if found is None:
        raise _unknown(name)
    return found


def warm_workers(server: ApiClient, function: JsonObject) -> int | None:
    """Idle workers of a function at the node that answers; None for a caller that may not see nodes."""
    space = function.get("Namespace", "default")
    name = function["Name"] if space == "default" else f"{space}/{function['Name']}"
    with explain_call_errors(function["Name"]):
        try:
            return int(server.get("status")["AvailableWarmContainers"].get(name, 0))
        except ApiError as error:
            if error.status != _FORBIDDEN:
                raise
            return None


def _unknown(name: str) -> ApiError:
    return ApiError(404, f"There is no function '{name}'. 'skerry fn list' lists them.", "not-found")


@contextmanager
def explain_call_errors(name: str) -> Iterator[None]:
    """Give errors that the contract answers with a status alone a message; print output of failed loads."""
    try:
        yield
    except ApiError as error:
        reply = error.reply if isinstance(error.reply, dict) else {}
        if printed := reply.get("Output"):
            click.echo(printed, nl=not printed.endswith("\n"), err=True)
        raise ApiError(error.status, _in_words(error, name), error.code, error.reply) from None


def _in_words(error: ApiError, name: str) -> str:
    match error.status:
        case 404 if error.message == _INVALID_RUNTIME:
            return "Unknown runtime; use python, nodejs or custom."
        case 404 if not error.code:
            return _unknown(name).message
        case 409:
            return f"{name} was deployed by another client just now; try again."
        case 429:
            return "Too many calls are queued. Try again in a moment."
    return error.message


def call(server: ApiClient, name: str, body: bytes) -> JsonObject:
    """A report, or the id of an async call."""
    with explain_call_errors(name):
        try:
            reply = server.post("invoke", name, body=body, timeout=None)
        except ApiError as error:
            if not _is_report(error.reply):
                raise
            reply = error.reply
        return reply


def poll_call(server: ApiClient, request: str, wait: str | None = None) -> JsonObject:
    """The state of an async call, with its report if it has ended; waits for that up to `wait`."""
    try:
        return server.get("poll", request, wait=wait)
    except ApiError as error:
        state = error.reply["State"] if _is_report(error.reply) else ""
        if state in PENDING:
            pending: JsonObject = error.reply
            return pending
        if state == "expired":
            raise ApiError(error.status, f"{request}: {error.reply['Error']}", state) from None
        if error.status == 404:
            raise ApiError(
                404, f"There is no call '{request}', or its result has expired.", "not-found"
            ) from None
        raise


def result(server: ApiClient, request: str) -> JsonObject:
    """Wait for the report of an async call."""
    shown = ""
    try:
        report = poll_call(server, request)
        while report["State"] in PENDING:
            if report["State"] != shown:
                shown = report["State"]
                click.echo(f"{request}: {shown}", err=True)
            time.sleep(_PAUSE_S)  # a server that does not know long polls answers at once
            report = watch.retry_while_unreachable(lambda: poll_call(server, request, _LONG_POLL))
    except KeyboardInterrupt:
        click.echo(f"The call continues: 'skerry fn poll {request}' shows its result.", err=True)
        raise
    return report


def _is_report(reply: Any) -> bool:
    return isinstance(reply, dict) and "Success" in reply
