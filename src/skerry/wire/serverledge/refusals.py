"""Errors as this contract has them.

Where it fixes the text of an answer, that text in plain; otherwise an object whose `message` says what is
wrong, also where the public program says nothing. Statuses are those of all routes (`skerry.wire.errors`).
"""

from __future__ import annotations

import msgspec

from skerry.model import errors
from skerry.model.calls import LoadFailed
from skerry.wire.http import answers
from skerry.wire.http.answers import Headers, HttpError
from skerry.wire.serverledge import spelling

JSON = "application/json; charset=UTF-8"
TEXT = "text/plain; charset=UTF-8"

FUNCTION_UNKNOWN = "Function unknown."
UNKNOWN_FUNCTION = "Unknown function."
INVALID_RUNTIME = "Invalid runtime."
INVALID_MEMORY = "Invalid memory limit"


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong, for people and (`code`) for programs; `Output` is what a function printed meanwhile."""

    message: str
    code: str = ""
    output: str = msgspec.field(default="", name="Output")


class Fixed(HttpError):
    """An answer that the contract fixes to the letter."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(status, "", text)


def told(error: errors.SkerryError | HttpError, request_id: str) -> tuple[int, Headers, bytes]:
    """Status, headers and body that tell the caller of `error`."""
    status, code, headers = answers.outline(error)
    if isinstance(error, Fixed):
        media, body = TEXT, error.message.encode()
    elif isinstance(error, (errors.AlreadyExists, errors.Overloaded)):
        media, body = TEXT, b""
    else:
        output = error.output if isinstance(error, LoadFailed) else ""
        media, body = JSON, spelling.written(Message(error.message, code, output))
    return (
        status,
        [*headers, (b"content-type", media.encode()), (b"content-length", str(len(body)).encode())],
        body,
    )
