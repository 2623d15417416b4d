"""Errors of REAR.

What is not free, or not in the required state, is 409: a buyer may try again, or another offer. Other errors
have the status of all routes (`skerry.transport.error_codes`), and the shape is that of Skerry's own routes,
also where the public program sends plain text.
"""

from __future__ import annotations

from typing import Final

from skerry.model import errors
from skerry.transport.http import responses
from skerry.transport.http.responses import HttpError, HttpHeaders

_CONFLICT: Final = 409
_KEY: Final = (b"www-authenticate", b"Skerry-Proof")


def error_response(error: errors.SkerryError | HttpError, request_id: str) -> tuple[int, HttpHeaders, bytes]:
    """Status, headers and body for `error`."""
    status, headers, body = responses.error_response(error, request_id)
    if isinstance(error, (errors.ResourcesExhausted, errors.FailedPrecondition)):
        status = _CONFLICT
    elif isinstance(error, errors.Unauthenticated):
        headers.append(_KEY)
    return status, headers, body
