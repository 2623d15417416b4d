"""Errors as this contract has them: 404, 409, 410 and 422 apart.

What is taken, or not in its state, is a conflict here: a buyer may try again, or elsewhere. Everything else
has the status of all routes (`skerry.transport.error_codes`), and the shape is that of Skerry's own routes,
also where the public program writes plain text.
"""

from __future__ import annotations

from typing import Final

from skerry.model import errors
from skerry.transport.http import responses
from skerry.transport.http.responses import HttpError, HttpHeaders

_CONFLICT: Final = 409
_KEY: Final = (b"www-authenticate", b"Skerry-Proof")


def error_response(error: errors.SkerryError | HttpError, request_id: str) -> tuple[int, HttpHeaders, bytes]:
    """Status, headers and body that tell the caller of `error`."""
    status, headers, body = responses.error_response(error, request_id)
    if isinstance(error, (errors.ResourcesExhausted, errors.FailedPrecondition)):
        status = _CONFLICT
    elif isinstance(error, errors.Unauthenticated):
        headers.append(_KEY)
    return status, headers, body
