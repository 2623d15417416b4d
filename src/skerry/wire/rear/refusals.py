"""Errors as this contract has them: 404, 409, 410 and 422 apart.

What is taken, or not in its state, is a conflict here: a buyer may try again, or elsewhere. Everything else
has the status of all routes (`skerry.wire.errors`), and the shape is that of Skerry's own routes, also where
the public program writes plain text.
"""

from __future__ import annotations

from typing import Final

from skerry.model import errors
from skerry.wire.http import answers
from skerry.wire.http.answers import Headers, HttpError

_CONFLICT: Final = 409
_KEY: Final = (b"www-authenticate", b"Skerry-Proof")


def told(error: errors.SkerryError | HttpError, request_id: str) -> tuple[int, Headers, bytes]:
    """Status, headers and body that tell the caller of `error`."""
    status, headers, body = answers.of_error(error, request_id)
    if isinstance(error, (errors.NoRoom, errors.Refused)):
        status = _CONFLICT
    elif isinstance(error, errors.Unauthenticated):
        headers.append(_KEY)
    return status, headers, body
