"""Errors of Serverledge.

Where the contract fixes the text of a response, that text; otherwise an object with a `message`, also where
the public program sends nothing. Statuses are those of all routes (`skerry.transport.error_codes`).
"""

from __future__ import annotations

import msgspec

from skerry.model import errors
from skerry.model.calls import CodeLoadError
from skerry.transport.http import responses
from skerry.transport.http.responses import HttpError, HttpHeaders, RouteNotFound, WrongVerb
from skerry.wire.serverledge import go_json

JSON = "application/json; charset=UTF-8"
TEXT = "text/plain; charset=UTF-8"

FUNCTION_UNKNOWN = "Function unknown."
UNKNOWN_FUNCTION = "Unknown function."
INVALID_RUNTIME = "Invalid runtime."
INVALID_MEMORY = "Invalid memory limit"
NO_ROUTE = "Not Found"
WRONG_VERB = "Method Not Allowed"


class ErrorDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error, for people and (`code`) for programs; `Detail` says more where the contract fixes the
    message, `Output` is the output of the function."""

    message: str
    code: str = ""
    detail: str = msgspec.field(default="", name="Detail")
    output: str = msgspec.field(default="", name="Output")


class FixedTextError(HttpError):
    """A response whose text the contract fixes."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(status, "", text)


def error_response(error: errors.SkerryError | HttpError, request_id: str) -> tuple[int, HttpHeaders, bytes]:
    """Status, headers and body for `error`."""
    status, code, headers = responses.error_head(error)
    if isinstance(error, FixedTextError):
        media, body = TEXT, error.message.encode()
    elif isinstance(error, (errors.AlreadyExists, errors.Overloaded)):
        media, body = TEXT, b""
    else:
        media, body = JSON, go_json.encode_go_json(_document(error, code))
    return (
        status,
        [*headers, (b"content-type", media.encode()), (b"content-length", str(len(body)).encode())],
        body,
    )


def _document(error: errors.SkerryError | HttpError, code: str) -> ErrorDocument:
    match error:
        case RouteNotFound():
            return ErrorDocument(NO_ROUTE, code, detail=error.message)
        case WrongVerb():
            return ErrorDocument(WRONG_VERB, code, detail=error.message)
        case CodeLoadError():
            return ErrorDocument(error.message, code, output=error.output)
        case _:
            return ErrorDocument(error.message, code)
