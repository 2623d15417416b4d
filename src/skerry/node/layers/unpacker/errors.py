"""Errors of unpacking: a kind for the agent and a sentence for people."""

from __future__ import annotations

import errno
from typing import Final

from skerry.kit.tar.errors import RefusedTar, TarError, TarTooLarge, spell

MALFORMED: Final = "malformed"  # not a tar, or truncated
REFUSED: Final = "refused"  # a tar with content that no layer may have
TOO_LARGE: Final = "too-large"
DISK_FULL: Final = "no-room"
BROKEN: Final = "broken"  # a bug, or a failure of this machine

_DISK_FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# Errors of a file system for names, links and attributes that it does not support.
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
    """Unpacking the layer failed."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def of_archive(error: TarError) -> UnpackError:
    """The error for a malformed or refused tar."""
    if isinstance(error, TarTooLarge):
        return UnpackError(
            TOO_LARGE, f"the layer {error.message}; raise images.max_layer_bytes if you trust it"
        )
    return UnpackError(REFUSED if isinstance(error, RefusedTar) else MALFORMED, f"the layer {error.message}")


def of_system(error: OSError, name: bytes) -> UnpackError:
    """The error for a system error on the entry `name`."""
    reason = (error.strerror or "it failed").lower()
    if error.errno in _DISK_FULL_ERRNOS:
        return UnpackError(DISK_FULL, "the disk is full; free some space and pull the image again")
    if error.errno in _CANNOT_HOLD:
        return UnpackError(REFUSED, f"{spell(name)} cannot be stored on this node's file system: {reason}")
    return UnpackError(BROKEN, f"{spell(name)} could not be written: {reason}")
