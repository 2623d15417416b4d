"""Why a layer is not unpacked, in one word for the agent and one sentence for people."""

from __future__ import annotations

import errno
from typing import Final

MALFORMED: Final = "malformed"  # no tar, or not whole
REFUSED: Final = "refused"  # a tar that holds what no layer may hold
TOO_LARGE: Final = "too-large"
NO_ROOM: Final = "no-room"
BROKEN: Final = "broken"  # ours, or this machine's

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# What a file system says to names, links and attributes that it cannot hold.
_CANNOT_HOLD: Final = frozenset(
    {
        errno.E2BIG,
        errno.EFBIG,
        errno.EINVAL,
        errno.ELOOP,
        errno.EMLINK,
        errno.ENAMETOOLONG,
        errno.ENOTSUP,
        errno.EOVERFLOW,
        errno.EPERM,
        errno.ERANGE,
    }
)


class UnpackError(Exception):
    """The layer is given up."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def spell(name: bytes) -> str:
    """A name out of a layer, safe to print and not too long to read."""
    text = name.decode("utf-8", "backslashreplace")
    text = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return repr(text if len(text) <= 200 else f"{text[:160]}...{text[-30:]}")


def of_system(error: OSError, name: bytes) -> UnpackError:
    """What the system said about the entry `name`, as a fault."""
    reason = (error.strerror or "it failed").lower()
    if error.errno in _NO_ROOM:
        return UnpackError(NO_ROOM, "the disk is full; make room and pull the image again")
    if error.errno in _CANNOT_HOLD:
        return UnpackError(REFUSED, f"{spell(name)} cannot be kept on this node's file system: {reason}")
    return UnpackError(BROKEN, f"{spell(name)} could not be written: {reason}")
