"""The one table from errors to HTTP and the one to gRPC.

Every leaf and inner class of `skerry.model.errors` has a row in both; a test of the repository holds that.
Contracts with texts or codes of their own translate at their own edge and fall back to these.
"""

from __future__ import annotations

from grpclib.const import Status

from skerry.model import errors

HTTP_STATUS: dict[type[errors.SkerryError], int] = {
    errors.Invalid: 400,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.AlreadyExists: 409,
    errors.Conflict: 409,
    errors.FailedPrecondition: 412,
    errors.Unprocessable: 422,
    errors.Expired: 410,
    errors.Compacted: 410,
    errors.TooLarge: 413,
    errors.Overloaded: 429,
    errors.ResourcesExhausted: 507,
    errors.QuotaExceeded: 403,
    errors.Unavailable: 503,
    errors.TimedOut: 504,
    errors.Internal: 500,
}

GRPC_STATUS: dict[type[errors.SkerryError], Status] = {
    errors.Invalid: Status.INVALID_ARGUMENT,
    errors.Unauthenticated: Status.UNAUTHENTICATED,
    errors.Forbidden: Status.PERMISSION_DENIED,
    errors.NotFound: Status.NOT_FOUND,
    errors.AlreadyExists: Status.ALREADY_EXISTS,
    errors.Conflict: Status.ABORTED,
    errors.FailedPrecondition: Status.FAILED_PRECONDITION,
    errors.Unprocessable: Status.FAILED_PRECONDITION,
    errors.Expired: Status.FAILED_PRECONDITION,
    errors.Compacted: Status.OUT_OF_RANGE,
    errors.TooLarge: Status.RESOURCE_EXHAUSTED,
    errors.Overloaded: Status.RESOURCE_EXHAUSTED,
    errors.ResourcesExhausted: Status.RESOURCE_EXHAUSTED,
    errors.QuotaExceeded: Status.RESOURCE_EXHAUSTED,
    errors.Unavailable: Status.UNAVAILABLE,
    errors.TimedOut: Status.DEADLINE_EXCEEDED,
    errors.Internal: Status.INTERNAL,
}
