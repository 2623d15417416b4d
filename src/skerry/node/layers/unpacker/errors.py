"""Why a layer is not unpacked, in one word for the agent and one sentence for people."""

from __future__ import annotations

import errno
from typing import Final

from skerry.kit.tar.errors import RefusedTar, TarError, TarTooLarge, spell

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


def of_archive(error: TarError) -> UnpackError:
    """What is wrong with the layer as a tar archive, as a fault."""
    if isinstance(error, TarTooLarge):
        return UnpackError(
            TOO_LARGE, f"the layer {error.message}; raise images.max_layer_bytes if it is to be trusted"
        )
    return UnpackError(REFUSED if isinstance(error, RefusedTar) else MALFORMED, f"the layer {error.message}")


def of_system(error: OSError, name: bytes) -> UnpackError:
    """What the system said about the entry `name`, as a fault."""
    reason = (error.strerror or "it failed").lower()
    if error.errno in _NO_ROOM:
        return UnpackError(NO_ROOM, "the disk is full; make room and pull the image again")
    if error.errno in _CANNOT_HOLD:
        return UnpackError(REFUSED, f"{spell(name)} cannot be kept on this node's file system: {reason}")
    return UnpackError(BROKEN, f"{spell(name)} could not be written: {reason}")
