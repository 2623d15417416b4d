"""Every error that may leave a package, as one tree.

    SkerryError
    ├── Invalid            the input is malformed or out of range
    ├── Unauthenticated    the caller has no credentials, or invalid ones
    ├── Forbidden          the caller is known and may not do this
    ├── NotFound           there is nothing of that name
    ├── AlreadyExists      the name is taken by something else
    ├── Conflict           it changed since the caller read it
    ├── FailedPrecondition not in its present state: an impossible transition, a failed precondition
    ├── Unprocessable      well-formed, but against a policy of this server
    ├── Expired            it existed, and has expired
    │   └── Compacted      the requested history is no longer stored
    ├── TooLarge           above a limit in size or count
    ├── Overloaded         too much at once; later it may work
    ├── ResourcesExhausted no capacity for it anywhere
    ├── QuotaExceeded      more than the quota of its namespace
    ├── Unavailable        something that this needs is not reachable
    ├── TimedOut           it did not end in time
    └── Internal           a fault of ours

Each carries two texts: `message`, which the caller may read and which says what to do, and `detail`, which
only the log gets. `slug` is the word that programs compare. `skerry.transport.error_codes` holds the one
table to HTTP and the one table to gRPC.
"""

from __future__ import annotations

from typing import ClassVar


class SkerryError(Exception):
    """The root; never raised itself."""

    slug: ClassVar[str]

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail


class Invalid(SkerryError):
    """The input is malformed or out of range; `field` names the part of it, where one is to blame."""

    slug = "invalid"

    def __init__(self, message: str, *, field: str = "", detail: str = "") -> None:
        super().__init__(message, detail=detail)
        self.field = field


class Unauthenticated(SkerryError):
    """The caller has no credentials, or invalid ones."""

    slug = "unauthenticated"


class Forbidden(SkerryError):
    """The caller is known and may not do this."""

    slug = "forbidden"


class NotFound(SkerryError):
    """There is nothing of that name."""

    slug = "not-found"


class AlreadyExists(SkerryError):
    """The name is taken by something else."""

    slug = "already-exists"


class Conflict(SkerryError):
    """It changed since the caller read it; read again and retry."""

    slug = "conflict"


class FailedPrecondition(SkerryError):
    """Not in its present state: an impossible transition or a failed precondition."""

    slug = "refused"


class Unprocessable(SkerryError):
    """Well-formed, but against a policy of this server."""

    slug = "unprocessable"


class Expired(SkerryError):
    """It was there and its time is over."""

    slug = "expired"


class Compacted(Expired):
    """The requested history is no longer stored; take a new snapshot."""

    slug = "compacted"


class TooLarge(SkerryError):
    """Above a limit in size or count."""

    slug = "too-large"


class Overloaded(SkerryError):
    """Too much at once; `retry_after_s` is when it may work."""

    slug = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, detail: str = "") -> None:
        super().__init__(message, detail=detail)
        self.retry_after_s = retry_after_s


class ResourcesExhausted(SkerryError):
    """No capacity for it anywhere."""

    slug = "no-room"


class QuotaExceeded(SkerryError):
    """More than the quota of its namespace."""

    slug = "quota-exceeded"


class Unavailable(SkerryError):
    """Something that this needs is away; trying again later may work."""

    slug = "unavailable"


class TimedOut(SkerryError):
    """It did not end in its time."""

    slug = "timed-out"


class Internal(SkerryError):
    """A fault of ours; the log has the detail under the request id."""

    slug = "internal"
